"""A new method is one new file and one line: the example of docs/extending.md in a copy of the
project, where every list, linter and check that knows all methods stays green without an edit. What
a method must not import is refused there.
"""

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
COPIED = ("src", "tests", "docs", "pyproject.toml", "README.md", "CONTRIBUTING.md", "mkdocs.yml")
LINE = "from credo.methods.ensembles.anchored import Anchored as Anchored\n"
FILE = "src/credo/methods/ensembles/anchored.py"

needs_ruff = pytest.mark.skipif(not find_spec("ruff"), reason="ruff is not installed")
needs_import_linter = pytest.mark.skipif(
    not find_spec("importlinter"), reason="import-linter is not installed"
)


def files_shown():
    """The blocks of docs/extending.md that are whole files: they begin with a docstring."""
    page = (ROOT / "docs" / "extending.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return [block for block in blocks if block.startswith('"""')]


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A copy of the project with the method of docs/extending.md in it: one file, one line."""
    root = tmp_path_factory.mktemp("project")
    unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, root / name, ignore=unwanted)
        else:
            shutil.copy(ROOT / name, root / name)
    (root / FILE).write_text(files_shown()[0])
    listed = root / "src/credo/methods/__init__.py"
    lines = listed.read_text().splitlines(keepends=True)
    place = next(i for i, line in enumerate(lines) if line > LINE and "methods.ens" in line)
    listed.write_text("".join([*lines[:place], LINE, *lines[place:]]))
    return root


def run(project, *words):
    """``python`` with these words in the copy, which is the credo that it imports."""
    environment = os.environ | {"PYTHONPATH": str(project / "src"), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *words],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )


def lint_imports(project):
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    return run(project, "-c", code)


def test_the_page_shows_a_method_a_family_a_likelihood_an_estimator_and_a_task():
    needed = ("(Method,", "(Family)", "(ContinuousLikelihood)", "(Estimator)", "BNN, pool")
    found = files_shown()
    assert len(found) == len(needed)
    for text, part in zip(found, needed, strict=True):
        assert part in text


@needs_ruff
@pytest.mark.parametrize("text", files_shown(), ids=lambda text: text[3:20])
@pytest.mark.parametrize("words", [("check",), ("format", "--diff")], ids=lambda words: words[0])
def test_files_of_the_page_are_clean(text, words):
    done = subprocess.run(
        [sys.executable, "-m", "ruff", *words, "--stdin-filename", "src/credo/example.py", "-"],
        cwd=ROOT,
        input=text,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@needs_ruff
def test_linters_take_the_new_method(project):
    for words in (("check",), ("format", "--check")):
        done = run(project, "-m", "ruff", *words, "--no-cache", "src/credo/methods")
        assert done.returncode == 0, done.stdout + done.stderr


@needs_import_linter
def test_import_contracts_hold_with_the_new_method(project):
    done = lint_imports(project)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_command_line_lists_it(project):
    done = run(project, "-c", "from credo.cli import main; main()", "methods")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^\W*anchored\b", done.stdout, re.MULTILINE), done.stdout


#: What lists all methods, or asks something of each: files of tests, or single ones.
KNOW_ALL_METHODS = (
    "tests/test_docs.py::test_readme_lists_what_exists",
    "tests/test_docs.py::test_tables_are_their_registry",
    "tests/test_docs.py::test_methods_page_is_the_registry",
    "tests/test_docs.py::test_reference_has_the_class_of_every_method",
    "tests/test_architecture.py::test_the_map_has_every_room_in_the_order_that_is_checked",
    "tests/test_architecture.py::test_the_map_has_every_kin_of_methods",
    "tests/test_architecture.py::test_a_method_file_has_the_order_that_contributing_says[anchored]",
    "tests/test_api.py",
    "tests/cli/test_method_index.py",
    "tests/conformance/test_registry.py",
    "tests/conformance/test_suite.py::test_exceptions_name_checks_or_traits",
    "tests/reproduce/test_uci_recipes.py",
    "tests/reproduce/test_audit_problems.py",
)


CONFORMANCE = ("tests/conformance/test_suite.py", "-k", "anchored")


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(KNOW_ALL_METHODS, id="lists"),
        pytest.param(CONFORMANCE, id="conformance", marks=pytest.mark.slow),
    ],
)
def test_what_knows_all_methods_takes_the_new_one_without_an_edit(project, words):
    done = run(project, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", *words)
    assert done.returncode == 0, done.stdout[-4000:]


USE_OF_A_FAMILY = """
import credo, torch
from torch import nn
x = torch.linspace(-1, 1, 20).unsqueeze(1)
bnn = credo.BNN(nn.Linear(1, 1), "gaussian")
bnn.fit((x, x), "vi", posterior="double_exponential", epochs=2, progress=False)
bnn.save("saved")
again = credo.load("saved", nn.Linear(1, 1))
assert torch.equal(bnn.predict(x).outputs, again.predict(x).outputs)
print(credo.__file__)
"""


def test_methods_offer_a_family_that_is_one_file_and_one_import(project):
    listed = project / "src/credo/posteriors/__init__.py"
    file, before = listed.with_name("double_exponential.py"), listed.read_text()
    try:
        file.write_text(files_shown()[1])
        listed.write_text(f"{before}\nfrom credo.posteriors.double_exponential import *\n")
        done = run(project, "-c", USE_OF_A_FAMILY)
    finally:
        file.unlink()
        listed.write_text(before)
        shutil.rmtree(project / "saved", ignore_errors=True)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(project)


ROOMS = "Imports go one way, and every room has its place"
KIN = "Kin of methods never import each other, nor each other's parts"
METHODS = "Methods of one kin never import each other, and their parts no method"
EXPERIMENTS = "The library does not know the experiments"

#: What is wrong: the file, the line that it gets, and the contract that must refuse it.
FORBIDDEN = {
    "a method imports another method": (FILE, "credo.methods.ensembles.swag", METHODS),
    "parts import a method": (
        "src/credo/methods/ensembles/parts/members.py",
        "credo.methods.ensembles.anchored",
        METHODS,
    ),
    "a method imports the parts of another kin": (FILE, "credo.methods.sampling.parts.chains", KIN),
    "parts import those of another kin": (
        "src/credo/methods/ensembles/parts/members.py",
        "credo.methods.sampling.parts.chains",
        KIN,
    ),
    "a method imports one of another kin": (FILE, "credo.methods.point.map", KIN),
    "a method imports all methods": (FILE, "credo.methods", KIN),
    "a new kin imports another": (
        "src/credo/methods/newkin/first.py",
        "credo.methods.point.map",
        KIN,
    ),
    "a new kin imports the parts of another": (
        "src/credo/methods/newkin/first.py",
        "credo.methods.sampling.parts.chains",
        KIN,
    ),
    "the engine imports a method": ("src/credo/engine/step.py", "credo.methods.point.map", ROOMS),
    "a room has no place": ("src/credo/newroom/__init__.py", "math", ROOMS),
    "the library imports an experiment": (
        "src/credo/cli/app.py",
        "credo_reproduce.catalogue",
        EXPERIMENTS,
    ),
}


@needs_import_linter
@pytest.mark.parametrize("case", FORBIDDEN)
def test_a_forbidden_import_is_refused(project, case):
    name, module, contract = FORBIDDEN[case]
    path = project / name
    before, new_folder = path.read_text() if path.exists() else "", not path.parent.exists()
    path.parent.mkdir(exist_ok=True)
    (path.parent / "__init__.py").touch()
    try:
        path.write_text(f"{before}\nimport {module}\n")
        done = lint_imports(project)
    finally:
        path.write_text(before)
        if new_folder:
            shutil.rmtree(path.parent)
    assert done.returncode != 0, done.stdout
    assert f"{contract} BROKEN" in done.stdout, done.stdout
