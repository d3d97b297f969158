"""Tests of the UCI tables on made-up results."""

import pytest

from credo_reproduce.outcome import shown
from credo_reproduce.uci_cells import SETS, Cell
from credo_reproduce.uci_table import (
    PAPER,
    SAME,
    Mean,
    best,
    checks,
    figure,
    published,
    summary,
    tables,
)


def result(ll, rmse=1.0, candidate="a"):
    return {"ll": ll, "rmse": rmse, "candidate": candidate, "seconds": 2.0}


DONE = {
    Cell("yacht", 0, "hmc"): result(-0.3),
    Cell("yacht", 1, "hmc"): result(-0.5, candidate="b"),
    Cell("yacht", 2, "hmc"): result(-0.4, candidate="b"),
    Cell("yacht", 0, "mc_dropout"): result(-1.0),
    Cell("yacht", 1, "mc_dropout"): result(-1.0),
    Cell("yacht", 2, "mc_dropout"): result(-1.0),
    Cell("yacht", 0, "vi"): result(0.5),
    Cell("boston", 0, "vi"): result(-3.0),
}


def test_published_values_are_complete_and_the_best_is_the_largest():
    assert set(PAPER) == set(SETS) and all(len(columns) == 5 for columns in PAPER.values())
    bests = {
        "boston": -2.40,
        "concrete": -2.94,
        "energy": -1.01,
        "kin8nm": 1.20,
        "naval": 6.29,
        "power": -2.79,
        "protein": -2.83,
        "wine": -0.90,
        "yacht": -0.47,
    }
    assert {name: published(name)[1] for name in SETS} == bests
    assert published("yacht")[0] == "DVI" and set(SAME.values()) <= set(PAPER["yacht"])


def test_mean_and_standard_error():
    mean = Mean.of([1.0, 2.0, 3.0])
    assert mean.value == 2.0 and mean.error == pytest.approx((1.0 / 3) ** 0.5) and mean.count == 3
    assert (
        mean.text(2) == "2.00 ± 0.58"
        and Mean.of([1.0]) == (1.0, None, 1)
        and Mean.of([1.0]).text(1) == "1.0"
    )


def test_the_best_is_among_those_with_the_most_splits():
    """One lucky split is no match for three."""
    found = best(DONE, "yacht")
    assert found is not None and found[0] == "hmc" and found[1].value == pytest.approx(-0.4)
    assert best(DONE, "naval") is None


def test_a_table_has_methods_best_first_then_what_is_only_published():
    failures = {
        Cell("yacht", 3, "hmc"): "no luck",
        Cell("yacht", 0, "nuts"): "out of memory",
        Cell("yacht", 1, "nuts"): "again",
    }
    boston, yacht = sorted(tables(DONE, failures), key=lambda table: table.title)
    labels = [row.label for row in yacht.rows]
    assert labels == [
        "vi",
        "hmc",
        "mc_dropout",
        "nuts",
        "PBP",
        "MC dropout",
        "deep ensemble",
        "DVI",
    ]
    rows = {row.label: row for row in yacht.rows}
    assert (
        rows["hmc"].measured["log-likelihood"] == "-0.400 ± 0.058"
        and rows["hmc"].measured["chosen most"] == "b"
    )
    assert (
        rows["hmc"].measured["failed"] == "1 splits: no luck"
        and rows["nuts"].measured["failed"] == "2 splits: out of memory"
    )
    assert rows["mc_dropout"].paper["log-likelihood"] == -1.25 and rows["PBP"].paper["RMSE"] == 1.02
    assert (
        "Fewer splits than the standard 20" in yacht.note
        and "failed" in yacht.columns
        and "failed" not in boston.columns
    )
    assert all(
        len(table.cells(row)) == len(table.columns)
        for table in (boston, yacht)
        for row in table.rows
    )


def test_summary_and_checks():
    table = summary(DONE)
    rows = {row.label: row.measured for row in table.rows}
    assert (
        set(rows) == {"yacht", "boston"} and rows["yacht"]["best of ours"] == "-0.40 ± 0.06 (hmc)"
    )
    assert (
        rows["yacht"]["best published"] == "-0.47 (DVI)"
        and rows["boston"].get("hmc") is None
        and shown(None, 3) == "–"
    )
    first, second, last = checks(DONE)
    assert first.holds and "3 of 20 splits" in first.measured and not second.holds
    assert not last.holds and last.measured == "on 1 of 2 sets measured"
    good = {Cell(name, 0, "hmc"): result(published(name)[1]) for name in list(SETS)[:6]}
    assert checks(good)[-1].holds and all(check.holds for check in checks(good))


def test_figure_is_the_gap_to_the_best_published():
    (bars,) = figure(DONE)
    assert dict(zip(bars["names"], bars["values"], strict=True)) == pytest.approx(
        {"yacht": 0.07, "boston": -0.6}
    )


def test_nothing_measured_is_nothing_shown():
    assert checks({}) == [] and figure({}) == [] and tables({}, {}) == [] and not summary({}).rows
