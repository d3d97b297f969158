"""docs/architecture.md and CONTRIBUTING.md say what the source is: rooms, their order, the walks of
a fit, and what base classes ask for.
"""

import ast
import inspect
import re
import sys
import tomllib
from pathlib import Path
from pkgutil import resolve_name

import pytest

import credo
from credo.engine.method import Method
from credo.engine.training_loop import Learner
from credo.estimators import Estimator
from credo.likelihoods import Likelihood
from credo.methods import methods
from credo.methods.sampling.parts.run_moves import Moves
from credo.posteriors import Draw, Family
from credo.priors import Prior

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "credo"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
KINDS = (Likelihood, Prior, Family, Draw, Estimator, Method, Learner, Moves)


def section(title):
    return PAGE.split(f"\n## {title}", 1)[1].split("\n## ", 1)[0]


def first_column(text):
    """What the rows of all tables have in backticks in their first cell."""
    cells = re.findall(r"^\| (`[^|]+) \|", text, re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def rooms():
    """The folders of src/credo with a ``/``, and its modules."""
    folders = [f"{path.parent.name}/" for path in SOURCE.glob("*/__init__.py")]
    return {*folders, *(path.name for path in SOURCE.glob("*.py"))} - {"__init__.py"}


def kin():
    return {f"methods/{path.parent.name}/" for path in SOURCE.glob("methods/*/__init__.py")}


def test_the_map_has_every_room_in_the_order_that_is_checked():
    listed = [name for name in first_column(section("The rooms")) if name not in kin()]
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = contracts["contracts"][0]["layers"]
    assert set(listed) == rooms()
    assert [name.removesuffix("/").removesuffix(".py") for name in listed] == layers[::-1]


def test_the_map_has_every_kin_of_methods():
    assert kin() <= set(first_column(section("The rooms")))


def test_contributing_has_every_room():
    table = CONTRIBUTING.split("## Where things are", 1)[1].split("\n## ", 1)[0]
    assert set(first_column(table)) == rooms() - {"version.py"}


def paths_of(text):
    return re.findall(r"`((?:src|tests|docs|benchmarks)/[\w./-]*)`", text)


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
INVENTED = {"src/credo/methods/ensembles/anchored.py"}  # the example of docs/extending.md


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_names_exists(page):
    """Files from the root, or from ``src/credo``, where ``a/`` is any folder; names of the library
    with their dots. Code is executed elsewhere.
    """
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    short = re.findall(r"`((?!tests/|src/|docs/|benchmarks/)(?:[a-z_]+/)+[a-z_]+\.py)`", text)
    paths = {*paths_of(text), *(f"src/credo/{path}" for path in short)} - INVENTED
    assert not [path for path in paths if "/a/" not in path and not (ROOT / path).exists()]
    for name in {*re.findall(r"`(credo(?:_reproduce)?(?:\.\w+)+)|^::: (\S+)", text)}:
        resolve_name(next(filter(None, name)))


def rank(statement):
    """Where a statement of a method's class belongs: what is said of the method, settings, code."""
    if isinstance(statement, ast.AnnAssign):
        return 0 if "ClassVar" in ast.unparse(statement.annotation) else 1
    return 2 if isinstance(statement, ast.FunctionDef) else None


@pytest.mark.parametrize("name", methods.names())
def test_a_method_file_has_the_order_that_contributing_says(name):
    kind = methods[name]
    tree = ast.parse(Path(inspect.getfile(kind)).read_text())
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    order, body = list(classes), classes[kind.__name__].body
    assert ast.get_docstring(tree)
    records = [each for each in order if each.endswith(("State", "Info"))]
    assert order[: len(records)] == records
    ranks = [place for statement in body if (place := rank(statement)) is not None]
    assert ranks == sorted(ranks)
    stated = [ast.unparse(each.target) for each in body if isinstance(each, ast.AnnAssign)]
    assert stated[:3] == ["name", "summary", "reference"]
    assert "fit" in vars(kind)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_what_a_base_class_asks_for(kind):
    (row,) = re.findall(rf"^\| `{kind.__name__}` \|(.+)\|$", section("Eight classes"), re.MULTILINE)
    must, may, where = (re.findall(r"`([^`]+)`", cell) for cell in row.split("|"))
    assert set(must) == set(kind.__abstractmethods__)
    assert set(may) <= vars(kind).keys() - kind.__abstractmethods__
    assert where == [str(Path(inspect.getfile(kind)).relative_to(ROOT))]


def test_no_other_class_is_in_the_table():
    assert first_column(section("Eight classes")) == [kind.__name__ for kind in KINDS]


def test_a_family_has_what_the_page_promises():
    """Every name in backticks is one of a family, of a draw, or a keyword of the text."""
    named = {name.split("(")[0].removeprefix("Draw.") for name in promised()}
    words = {"NotImplemented", "backward", "noise", "values", "state_dict", "Params", "shapes"}
    known = {*vars(Family), *vars(Draw), *Draw.__annotations__}
    assert not named - known - words


def promised():
    return re.findall(r"`([^`]+)`", section("What a posterior family promises"))


def entered(shell, *words):
    """The files of src/credo that a credo command enters; what imports run is left out."""
    files = set()

    def watch(frame, event, arg):
        if event == "call" and frame.f_code.co_flags & inspect.CO_OPTIMIZED:  # of functions alone
            files.add(frame.f_code.co_filename)

    sys.setprofile(watch)
    try:
        result = shell(*words)
    finally:
        sys.setprofile(None)
    assert result.exit_code == 0, result.output
    return {str(Path(name).relative_to(ROOT)) for name in files if name.startswith(str(SOURCE))}


@pytest.fixture
def wine(tmp_path):
    """The table of the page's commands, with fewer columns."""
    data = credo.data.load("iris")
    rows = [f"{','.join(map(str, x))},kind{y}" for x, y in zip(data["x"], data["y"], strict=True)]
    (tmp_path / "wine.csv").write_text("\n".join(["a,b,c,d,cultivar", *rows]))


SHORT = {
    "One fit by descent": ("--epochs", "1"),
    "One fit by sampling": ("--set", "num_warmup=2", "--set", "num_draws=2"),
}


def test_a_prediction_enters_the_files_of_its_walk(shell, wine):
    shell("fit", "wine.csv", "--target", "cultivar", "--out", "run", "--epochs", "1")
    (command,) = re.findall("## One prediction: `credo (.+)`", PAGE)
    missing = set(paths_of(section("One prediction"))) - entered(shell, *command.split())
    assert not missing, f"docs/architecture.md: the prediction does not enter {sorted(missing)}"


@pytest.mark.parametrize("title", SHORT)
def test_a_fit_enters_the_files_of_its_walk(title, shell, wine):
    (command,) = re.findall(rf"## {title}: `credo (.+)`", PAGE)
    missing = set(paths_of(section(title))) - entered(shell, *command.split(), *SHORT[title])
    assert not missing, f"docs/architecture.md: the fit does not enter {sorted(missing)}"


def test_the_run_directory_holds_what_the_page_says(shell, wine, tmp_path):
    shell("fit", "wine.csv", "--target", "cultivar", "--out", "run", "--epochs", "1")
    text = section("One fit by sampling").split("A run directory holds", 1)[1]
    listed = set(re.findall(r"`([\w.]+\.\w+)`", text)) - {"checkpoint.safetensors"}
    assert listed == {path.name for path in (tmp_path / "run").iterdir()}
