"""The experiment on distillation: parts, skipping, tables, checks."""

import json

import pytest

from credo.core.errors import DataError, SettingError
from credo.data import load
from credo.report.html import render
from credo_reproduce import dark_knowledge
from credo_reproduce.base import make_experiment, perform
from credo_reproduce.dark_knowledge import LIMIT, _checks, _layers


def quick(**settings):
    return perform(make_experiment("dark_knowledge", {"quick": True, **settings}))


@pytest.fixture
def no_mnist(monkeypatch):
    def refuse(name):
        raise DataError(f"No data set {name!r} anywhere.")

    monkeypatch.setattr(dark_knowledge, "load", refuse)
    monkeypatch.setattr("credo_reproduce.probes.load", refuse)


def test_without_mnist_that_part_is_left_out_and_the_reason_said(no_mnist):
    outcome = quick().outcome
    assert [table.title for table in outcome.tables] == ["Twenty points in the plane"]
    assert outcome.notes == ["Without the part on MNIST: No data set 'mnist' anywhere."]
    with pytest.raises(DataError, match="No data set 'mnist'"):
        quick(parts="mnist")  # what was asked for is not left out


def test_the_toy_alone_says_nothing_of_mnist(no_mnist):
    result = quick(parts="toy")
    assert not result.outcome.notes and len(result.outcome.checks) == 4
    assert sorted(figure["kind"] for figure in result.outcome.figures) == ["curves", "mosaic"]
    page = result.page()
    json.dumps(page)
    assert "p(class 2)" in render(page)


def test_settings():
    assert _layers("100, 20") == (100, 20)
    for text in ("", "a", "10,0", "10,,5"):
        with pytest.raises(SettingError, match="toy_hidden="):
            _layers(text)
    with pytest.raises(SettingError, match="parts='both'"):
        make_experiment("dark_knowledge", {"parts": "both"})


def test_checks():
    rows = {
        "point": {"error": 1.5, "nll": 0.06},
        "teacher": {"error": 1.2, "nll": 0.04},
        "student": {"error": LIMIT, "nll": 0.05},
    }
    assert [check.holds for check in _checks(rows)] == [True, True]
    rows["student"] = {"error": LIMIT + 0.01, "nll": 0.06}
    assert [check.holds for check in _checks(rows)] == [False, False]


@pytest.mark.parametrize(("teacher", "passes"), [("sghmc", 8), ("mc_dropout", 400)])
def test_a_quick_run_on_mnist(teacher, passes):
    try:
        load("mnist")
    except DataError as error:
        pytest.skip(f"needs MNIST: {error}")
    said = []
    result = perform(
        make_experiment("dark_knowledge", {"quick": True, "parts": "mnist", "teacher": teacher}),
        say=said.append,
    )
    (table,) = result.outcome.tables
    assert [row.paper["error"] for row in table.rows] == [1.536, 1.271, 1.307]
    assert [row.measured["passes"] for row in table.rows] == [
        1,
        passes,
        1,
    ] and "rank_correlation" in table.note
    assert (
        len(result.outcome.figures) == 1
        and len(result.outcome.checks) == 2
        and any("mnist, student" in line for line in said)
    )
