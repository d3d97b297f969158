"""Tests of the table of all methods' distances from the truth."""

import json

import pytest

from credo.core.errors import DataError, SettingError
from credo.methods import methods
from credo.report.html import render
from credo_reproduce.audit_problems import NOT_APPLICABLE
from credo_reproduce.audit_table import COLUMNS, FEW, KEYS, STOCHASTIC, _checks, _table
from credo_reproduce.base import make_experiment, perform
from credo_reproduce.outcome import Row

SOME = ("hmc", "nuts", "vi", "map", "csgmcmc", "svgd", "importance", "stochastic", "exact")


def quick(**settings):
    return perform(make_experiment("audit", {"quick": True, "problems": ("linear",), **settings}))


@pytest.fixture(scope="module")
def result():
    return quick(methods=SOME)


def test_a_row_for_every_method_nearest_first(result):
    (table,) = result.outcome.tables
    assert {row.label for row in table.rows} == set(SOME) and len(table.rows) == len(SOME)
    values = [row.measured["total variation"] for row in table.rows]
    assert (
        values[-1] == NOT_APPLICABLE["stochastic"]
    )  # what has no number comes last, with its reason
    assert values[:-1] == sorted(values[:-1]) and values[0] >= 0 and values[-2] <= 1
    # that is for classification
    assert set(COLUMNS) <= set(table.columns) and "agreement" not in table.columns


def test_numbers_of_a_row_are_what_they_say(result):
    rows = {row.label: row.measured for row in result.outcome.tables[0].rows}
    for label in set(SOME) - set(NOT_APPLICABLE):
        assert (
            rows[label]["total variation"] >= 0
            and rows[label]["Wasserstein"] >= 0
            and rows[label]["seconds"] > 0
        )
        assert rows[label]["nll difference"] == rows[label]["nll difference"]  # not NaN
    assert rows["map"]["sd ratio"] == 0.0 and 0.5 < rows["exact"]["sd ratio"] < 2.0
    # three steps of descent are no fit
    assert rows["exact"]["total variation"] < rows["vi"]["total variation"]


def test_checks_and_figures(result):
    (figure,) = result.outcome.figures
    assert figure["names"] == [row.label for row in result.outcome.tables[0].rows][:-1]
    names = [check.name for check in result.outcome.checks]
    assert (
        names[0] == "linear: the reference has converged"
        and "linear: hmc is nearer than vi" in names
    )
    json.dumps(figure)
    assert "Reference: HMC" in result.outcome.tables[0].note and "total variation" in render(
        result.page()
    )


def test_the_same_seed_gives_the_same_numbers(result):
    again = quick(methods=("csgmcmc", "vi"))
    rows = {row.label: row.measured for row in result.outcome.tables[0].rows}
    for row in again.outcome.tables[0].rows:
        assert {k: v for k, v in row.measured.items() if k != "seconds"} == {
            k: v for k, v in rows[row.label].items() if k != "seconds"
        }


def test_made_up_rows_are_sorted_and_judged():
    class Named:
        name = "made up"

    rows = [
        Row(label, {"total variation": value, "ceiling": 0.01})
        for label, value in (("vi", 0.2), ("hmc", 0.3), ("map", 0.4))
    ]
    rows.append(Row("mle", {"total variation": "refused"}))
    table = _table(Named, rows, "Converged.", 1.0)
    assert [row.label for row in table.rows] == [
        "vi",
        "hmc",
        "map",
        "mle",
    ] and "0.0100" in table.note
    assert [(check.name, check.holds) for check in _checks(Named, rows)] == [
        ("made up: hmc is nearer than vi", False),
        ("made up: hmc is nearer than map", True),
    ]


def test_columns_have_keys_and_stochastic_methods_exist():
    assert len(KEYS) == len(COLUMNS) - 1 and set(STOCHASTIC) <= set(methods.names())
    assert "compile" in FEW and FEW["compile"] is False  # a quick run compiles nothing


def test_unknown_problems_are_refused_by_name():
    with pytest.raises(SettingError, match="'liner'.*linear"):
        quick(problems=("liner",), methods=("map",))


def test_unknown_methods_are_refused_before_the_reference_is_drawn(monkeypatch):
    """The reference takes minutes."""
    from credo import audit

    def refuse(*_, **__):
        raise AssertionError("the reference was drawn first")

    monkeypatch.setattr(audit, "reference", refuse)
    with pytest.raises(SettingError, match="Unknown method 'hmcc'"):
        quick(methods=("hmcc",))


def test_a_refusal_is_a_row_with_the_whole_sentence(monkeypatch):
    """Up to its end, not up to the first point of a number in it."""
    kind = methods["map"]

    def fit(self, model, fit_job):
        raise SettingError("lr=0.25 is too large for it; use a smaller one.")

    monkeypatch.setattr(kind, "fit", fit)
    (table,) = quick(methods=("map",)).outcome.tables
    assert table.rows[0].measured["total variation"] == "lr=0.25 is too large for it"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["linear", "crescents", "yacht"])
def test_every_method_has_a_row(name):
    try:
        (table,) = quick(problems=(name,)).outcome.tables
    except DataError as error:
        pytest.skip(f"needs the yacht data: {error}")
    assert {row.label for row in table.rows} == set(methods.names())
    words = {row.label for row in table.rows if isinstance(row.measured["total variation"], str)}
    # closed forms do not exist for every network
    assert words <= {*NOT_APPLICABLE, "exact", "last_layer", "moments"}
