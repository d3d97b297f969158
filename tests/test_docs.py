"""Every example in the README and the docs runs, and what the pages list is what exists.

The blocks of a page share one namespace and one empty directory and run in order. Fences by
language: ``python`` is executed; ``bash`` holds ``credo`` commands, run through the command line;
``output`` is what the block above it printed, compared word for word; ``text``, ``console`` and
``yaml`` are shown only (make, pip and git change more than a test may).
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
import shlex
import subprocess
import sys
import types
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

import credo
from credo.cli.app import app
from credo.conformance import checks
from credo.core.settings import describe
from credo.estimators import estimators
from credo.likelihoods import likelihoods
from credo.methods import methods
from credo.posteriors import families

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
EXECUTED = {"python", "bash", "output"}
SHOWN = {"text", "console", "yaml"}
FENCE = re.compile(r"^```(?P<language>\w*)[^\n]*\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, its text, and the line it starts on."""

    language: str
    body: str
    line: int


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(m["language"], m["body"], text.count("\n", 0, m.start()) + 2)
        for m in FENCE.finditer(text)
    ]


EXECUTABLE = [
    page for page in PAGES if any(block.language in EXECUTED for block in blocks_of(page))
]


@pytest.fixture
def own_registry():
    """What a page registers is gone again afterwards."""
    registries = (methods, families, estimators, likelihoods)
    before = [dict(registry) for registry in registries]
    yield
    for registry, entries in zip(registries, before, strict=True):
        registry.clear()
        registry.update(entries)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_fences_are_known_and_not_hidden(page):
    text = page.read_text()
    unknown = {block.language for block in blocks_of(page)} - EXECUTED - SHOWN
    assert not unknown, (
        f"{page.name} has fences of language {unknown}; use one of {EXECUTED | SHOWN}"
    )
    assert not re.search(r"^[ >]+```", text, re.MULTILINE), (
        f"{page.name} has an indented fence, which would not be executed"
    )
    assert text.count("\n```") % 2 == 0, f"{page.name} has a fence that is not closed"


@pytest.mark.parametrize("page", EXECUTABLE, ids=lambda page: page.stem)
def test_examples_run(page, tmp_path, monkeypatch, own_registry):
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType("docs_page")  # dataclasses look their module up by name
    monkeypatch.setitem(sys.modules, module.__name__, module)
    printed = ""
    for block in blocks_of(page):
        where = f"{page.name}:{block.line}"
        if block.language == "python":
            printed = run_python(block, where, module.__dict__)
        elif block.language == "bash":
            printed = run_commands(block, where)
        elif block.language == "output":
            assert printed.strip() == block.body.strip(), (
                f"{where}: the page shows something else than was printed"
            )


def run_python(block: Block, where: str, namespace: dict) -> str:
    code = compile("\n" * (block.line - 1) + block.body, where, "exec", dont_inherit=True)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(code, namespace)
    return out.getvalue()


def run_commands(block: Block, where: str) -> str:
    printed = ""
    lines = block.body.replace("\\\n", " ").splitlines()
    for words in (shlex.split(line, comments=True) for line in lines):
        if not words:
            continue
        assert words[0] == "credo", (
            f"{where}: only credo commands are run; show {words[0]!r} in a console fence"
        )
        result = CliRunner().invoke(app, words[1:])
        assert result.exit_code == 0, (
            f"{where}: {' '.join(words)} gave {result.exit_code}: {result.output}"
        )
        printed += result.stdout
    return printed


def table_row(page: str, kind: str) -> set[str]:
    """The names in backticks in the row of a table that starts with ``kind``."""
    row = next(line for line in page.splitlines() if line.startswith(f"| {kind} |"))
    return set(re.findall(r"`([^`]+)`", row))


def test_readme_lists_what_exists():
    text = (ROOT / "README.md").read_text()
    # the whole list is docs/methods.md, which is made from the registry: a new method edits neither
    assert table_row(text, "methods") <= set(methods.names())
    assert table_row(text, "posterior families") == set(families.names())
    assert table_row(text, "estimators") == set(estimators.names())
    assert table_row(text, "likelihoods") == set(likelihoods.names())
    assert table_row(text, "networks") == set(credo.nets.names())
    priors = table_row(text, "priors")
    assert all(hasattr(credo.priors, name) for name in priors)
    assert {"FanIn", "Flat", "scale_mixture"} <= priors


REGISTRIES = {
    "likelihoods": likelihoods,
    "posteriors": families,
    "estimators": estimators,
    "conformance": checks,
}


@pytest.mark.parametrize("name", REGISTRIES)
def test_tables_are_their_registry(name):
    listed = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / f"{name}.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(REGISTRIES[name].names()), (
        f"the table in docs/{name}.md is not what exists"
    )


def load_hook():
    spec = importlib.util.spec_from_file_location("gen_methods", ROOT / "docs" / "gen_methods.py")
    assert spec is not None
    assert spec.loader is not None
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    return hook


def test_methods_page_is_the_registry():
    hook = load_hook()
    page = hook.fill((ROOT / "docs" / "methods.md").read_text())
    for name, kind in methods.items():
        section = page.split(f"## `{name}`", 1)[1].split("\n## ", 1)[0]
        assert kind.reference in section
        assert all(f"`{row['name']}`" in section for row in describe(kind))
    assert hook.MARK not in page


def test_reference_has_the_class_of_every_method():
    hook = load_hook()
    page = hook.fill((ROOT / "docs" / "reference.md").read_text())
    for _, kind in methods.items():
        assert getattr(credo.methods, kind.__name__) is kind
        assert f"::: credo.methods.{kind.__name__}\n" in page
    assert hook.CLASSES not in page


def test_every_page_is_in_the_navigation():
    listed = set(re.findall(r"[\w-]+\.md", (ROOT / "mkdocs.yml").read_text()))
    assert listed == {page.name for page in (ROOT / "docs").glob("*.md")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_between_pages_exist(page):
    for target in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text()):
        assert (page.parent / target).exists(), (
            f"{page.name} links to {target}, which does not exist"
        )


def test_site_builds_without_warnings(tmp_path):
    pytest.importorskip("mkdocs", reason="the docs extra is not installed")
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        str(tmp_path / "site"),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    reference = (tmp_path / "site" / "reference" / "index.html").read_text()
    assert 'id="credo.BNN.fit"' in reference
    assert 'id="credo.methods.Laplace"' in reference
    assert not re.findall(r'(?:src|href)="https?://(?:fonts|cdn|unpkg)', reference), (
        "the site fetches from elsewhere"
    )
