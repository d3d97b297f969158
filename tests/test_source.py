"""What the source keeps: lengths, and words that a newcomer would not guess."""

import ast
import re
from itertools import pairwise
from pathlib import Path
from pkgutil import resolve_name

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
#: Former names that are still accepted.
ACCEPTED = {
    ("credo/audit/__init__.py", "held"),
    ("credo/estimators/moments/state.py", "spread"),
    ("credo/priors/learned.py", "spread"),
}
#: Names that once stood for something else, and what says it.
LEFT_BEHIND = {
    "Apart": "threaded members",
    "Course": "a schedule of draws, of the learning rate or of the KL weight",
    "Drift": "the moves of a sampler, by its name",
    "Fitting": "fitted alongside",
    "Flight": "the moves of a sampler, by its name",
    "Flock": "members",
    "Free": "fitted alongside",
    "Job": "fit job",
    "Steps": "the moves of a sampler, by its name",
    "Swarm": "the moves of a sampler, by its name",
    "Trace": "a recorded pass, or a training path",
    "Traced": "a recorded pass",
    "apart": "threaded, by itself",
    "course": "a schedule",
    "dials": "rate_params",
    "dress": "an example network",
    "flock": "members",
    "flock_step": "members_step",
    "held": "held_out, static, stored, ...",
    "job": "fit_job",
    "kept": "keep_mask, or what it is",
    "live": "noisy_modules",
    "look": "after_epoch, observe",
    "reach": "adversarial_step",
    "see": "observe",
    "settle": "after_fit",
    "small": "conformance_settings",
    "spread": "std, variance, ...",
    "tax": "penalty",
    "taxes": "penalties",
    "traced": "a recorded pass",
    "traces": "recorded passes",
    "voice": "likelihood_params",
    "voices": "likelihood_params",
}


def identifiers(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Attribute):
            yield node.attr, node.lineno
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name, node.lineno


def test_no_file_has_more_than_400_lines():
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in SOURCES}
    assert {name: length for name, length in lengths.items() if length > 400} == {}


@pytest.mark.parametrize("folder", ["src", "tests", "benchmarks"])
def test_no_line_has_more_than_100_columns(folder):
    long = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in (ROOT / folder).rglob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(line) > 100
    ]
    assert long == []


def test_words_left_behind_do_not_come_back():
    found = []
    for path in SOURCES:
        inside = str(path.relative_to(ROOT / "src"))
        for name, line in identifiers(ast.parse(path.read_text())):
            word = name.lstrip("_")
            if word in LEFT_BEHIND and (inside, word) not in ACCEPTED:
                found.append(f"{inside}:{line}: {name}; say {LEFT_BEHIND[word]}")
    assert found == []


def test_no_module_imports_itself_and_no_statement_stands_twice():
    found = []
    for path in SOURCES:
        own = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == own:
                found.append(f"{own}:{node.lineno} imports itself")
            body = getattr(node, "body", None)
            if isinstance(body, list):
                same = [b for a, b in pairwise(body) if ast.dump(a) == ast.dump(b)]
                found += [f"{own}:{each.lineno} repeats the statement before" for each in same]
    assert found == []


def test_files_and_names_in_docstrings_exist():
    """``file.py`` in double backticks, and :role:`credo.a.b`, whose module may have moved."""
    names = {path.name for path in SOURCES}
    found = []
    for path in SOURCES:
        text = path.read_text()
        found += [
            f"{path.name}: {file}"
            for file in re.findall(r"``(?:[\w/]+/)?([a-z_]+\.py)``", text)
            if file not in names
        ]
        for name in re.findall(r":\w+:`(credo[\w.]*)`", text):
            try:
                resolve_name(name)
            except (ImportError, AttributeError):
                found.append(f"{path.name}: {name}")
    assert found == []
