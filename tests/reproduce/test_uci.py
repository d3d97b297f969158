"""Tests of the UCI experiment on made-up sets: which cells, resuming, failures, and processes side
by side.
"""

import json

import pytest
from zoo.uci import made_up, write_set

from credo.core.errors import CredoError, DataError, SettingError
from credo.data import load
from credo.report.html import render
from credo_reproduce import uci, uci_recipes
from credo_reproduce.base import make_experiment, perform
from credo_reproduce.uci_cells import Cell


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Two made-up sets, and a place for finished cells."""
    data = tmp_path / "data"
    data.mkdir()
    for number, name in enumerate(("uci_yacht", "uci_boston")):
        write_set(data, name, made_up(seed=number))
    monkeypatch.setenv("CREDO_DATA", str(data))
    return tmp_path / "cells"


def go(home, say=lambda _: None, **settings):
    given = {"quick": True, "effort": 0.01, "methods": "map,mle", "splits": "0", "store": str(home)}
    return perform(make_experiment("uci", given | settings), say=say)


def test_a_run_has_tables_checks_and_a_page(home):
    heard = []
    result = go(home, heard.append, sets="yacht,boston", splits="0-1")
    assert len(list(home.glob("*.json"))) == 8
    assert heard[0] == "8 cells, 0 finished before, 8 to measure" and heard[1].startswith(
        "1/8 yacht, split 0, map: ll "
    )
    summary, yacht, boston = result.outcome.tables
    assert [row.label for row in summary.rows] == ["yacht", "boston"] and {"map", "mle"} <= set(
        summary.columns
    )
    assert yacht.title.startswith("yacht") and boston.title.startswith("boston")
    assert len(result.outcome.checks) == 3 and "best of ours" in render(result.page())


def test_a_second_run_makes_no_fit(home, monkeypatch):
    first = go(home)
    monkeypatch.setattr(uci, "keep", lambda *_: pytest.fail("a cell was measured again"))
    heard = []
    second = go(home, heard.append)
    assert heard == ["2 cells, 2 finished before, 0 to measure"]
    assert [t.rows for t in second.outcome.tables] == [t.rows for t in first.outcome.tables]


def test_a_killed_run_goes_on(home, monkeypatch):
    """Whatever was finished when the run was killed is not measured again, and the result is that
    of a run in one go.
    """
    whole = go(home.with_name("whole"), splits="0-1").outcome.tables
    inherited = uci.keep
    seen = []

    def killed(store, cell, terms, device):
        if len(seen) == 3:
            raise KeyboardInterrupt
        seen.append(cell)
        return inherited(store, cell, terms, device)

    monkeypatch.setattr(uci, "keep", killed)
    with pytest.raises(KeyboardInterrupt):
        go(home, splits="0-1")
    assert len(list(home.glob("*.json"))) == 3
    rest = []
    monkeypatch.setattr(
        uci,
        "keep",
        lambda store, cell, *more: (rest.append(cell), inherited(store, cell, *more))[1],
    )
    tables = go(home, splits="0-1").outcome.tables
    assert len(rest) == 1 and not set(rest) & set(seen)
    for ours, theirs in zip(tables, whole, strict=True):
        for row, other in zip(ours.rows, theirs.rows, strict=True):
            assert {k: v for k, v in row.measured.items() if k != "seconds"} == {
                k: v for k, v in other.measured.items() if k != "seconds"
            }


def test_limit_measures_some_and_shows_what_there_is(home):
    heard = []
    result = go(home, heard.append, limit=1)
    assert (
        heard[0] == "2 cells, 0 finished before, 1 to measure"
        and len(list(home.glob("*.json"))) == 1
    )
    assert [row.label for row in result.outcome.tables[1].rows][:1] == ["map"]
    # map of the run before is in the table, too
    assert len(go(home, methods="mle").outcome.tables[0].columns) == 4


def test_a_failing_cell_is_reported_and_does_not_stop_the_others(home, monkeypatch):
    inherited = uci.keep

    def fragile(store, cell, terms, device):
        if cell.method == "map":
            raise CredoError("lr=3 is too large; use a smaller one.")
        if cell.split == 1:
            raise ZeroDivisionError("by chance")
        return inherited(store, cell, terms, device)

    monkeypatch.setattr(uci, "keep", fragile)
    heard = []
    result = go(home, heard.append, splits="0,1")
    assert heard[-3:] == [
        "failed: yacht, split 0, map: lr=3 is too large; use a smaller one.",
        "failed: yacht, split 1, map: lr=3 is too large; use a smaller one.",
        "failed: yacht, split 1, mle: ZeroDivisionError: by chance",
    ]
    rows = {row.label: row.measured for row in result.outcome.tables[1].rows}
    assert (
        rows["map"]["failed"] == "2 splits: lr=3 is too large; use a smaller one."
        and rows["mle"]["splits"] == 1
    )
    assert rows["mle"]["failed"] == "1 splits: ZeroDivisionError: by chance"


def test_files_of_other_settings_are_counted_but_not_shown(home):
    go(home)
    result = go(home, effort=0.012)
    assert any(note.startswith("2 files in ") for note in result.outcome.notes)
    assert result.outcome.tables[1].rows[0].measured["splits"] == 1


def test_cells_are_those_asked_for_cheap_sets_first():
    made = make_experiment(
        "uci", {"methods": "vi,hmc", "sets": "protein,boston,yacht", "splits": "4-6,0"}
    )
    cells, apart = made.cells()
    assert (
        cells[0] == Cell("yacht", 0, "vi")
        and cells[1] == Cell("yacht", 0, "hmc")
        and cells[2].split == 4
    )
    assert [cell.split for cell in cells if cell.set == "protein" and cell.method == "vi"] == [
        0,
        4,
    ] and not apart
    everything, apart = make_experiment("uci", {"methods": "all"}).cells()
    assert set(apart) == set(uci_recipes.NOT_APPLICABLE)
    assert len(everything) == (8 * 20 + 5) * (
        len(uci.methods.names()) - len(uci_recipes.NOT_APPLICABLE)
    )
    main, _ = make_experiment("uci", {}).cells()
    assert {cell.method for cell in main} == set(uci.MAIN)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sets": "yatch"}, "Unknown set 'yatch'.*Did you mean 'yacht'"),
        ({"methods": "hmcc"}, "Unknown method 'hmcc'.*Did you mean 'hmc'"),
        ({"splits": "a"}, "splits='a'; expected numbers"),
        ({"splits": "3-1"}, "splits='3-1'; expected numbers"),
    ],
)
def test_unknown_choices_are_refused_before_anything_is_measured(settings, message, home):
    with pytest.raises(SettingError, match=message):
        go(home, **settings)
    assert not home.exists()


def test_a_missing_set_is_found_out_at_once(home):
    with pytest.raises(DataError, match="uci_energy"):
        go(home, sets="yacht,energy")
    assert not list(home.glob("*.json"))


def test_processes_side_by_side_give_the_same_cells(home):
    """And one that fails in its process is reported with its reason."""
    alone = go(home.with_name("alone"), splits="0-1").outcome.tables[1]
    heard = []
    together = go(home, heard.append, splits="0-1", jobs=2).outcome.tables[1]
    for row, other in zip(together.rows, alone.rows, strict=True):
        assert row.measured.get("log-likelihood") == other.measured.get("log-likelihood")
    assert len([line for line in heard if "/4 " in line]) == 4
    result = go(home, heard.append, methods="flow,bbvi", jobs=2, effort=1e-9)
    assert len(result.outcome.tables) >= 2


def test_quick_settings_on_the_published_set(tmp_path):
    try:
        load("uci_yacht")
    except DataError as error:
        pytest.skip(f"needs the yacht data: {error}")
    result = perform(make_experiment("uci", {"quick": True, "store": str(tmp_path)}))
    assert {json.loads(path.read_text())["method"] for path in tmp_path.glob("*.json")} == {
        "map",
        "hmc",
    }
    assert result.outcome.checks


@pytest.mark.slow
@pytest.mark.parametrize("method", uci.applicable())
def test_every_recipe_runs(home, method):
    """With next to no steps; a recipe that cannot run would only be found out in the middle of the
    night.
    """
    result = go(home, methods=method, effort=1e-3)
    rows = {row.label: row.measured for row in result.outcome.tables[-1].rows}
    assert rows[method].get("failed") is None and rows[method]["splits"] == 1
