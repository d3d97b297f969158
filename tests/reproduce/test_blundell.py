import pytest

from credo.core.errors import DataError, SettingError
from credo.data import load
from credo_reproduce.base import make_experiment, perform
from credo_reproduce.blundell import PAPER, REMOVED, _checks


def test_quick_run_has_every_cell_and_the_pruning_curve():
    try:
        load("mnist")
    except DataError as error:
        pytest.skip(f"needs MNIST: {error}")
    result = perform(make_experiment("blundell", {"quick": True}))
    errors, valid, pruned, parts = result.outcome.tables
    assert [row.label for row in errors.rows] == list(PAPER) and list(errors.columns) == [
        "20 units",
        "30 units",
    ]
    assert [row.label for row in valid.rows] == list(PAPER)
    assert all(0 <= value <= 100 for row in errors.rows for value in row.measured.values())
    assert len(pruned.columns) == len(REMOVED) and len(parts.rows) == 2 * len(PAPER)
    (figure,) = result.outcome.figures
    assert figure["lines"][0]["x"] == [100 * share for share in REMOVED]


def test_the_paper_stands_beside_its_widths():
    assert all(set(cells) == {400, 800, 1200} for cells in PAPER.values())


def test_checks_can_fail():
    good = {label: {800: 1.3} for label in PAPER} | {"Gaussian prior": {800: 2.0}}
    bad = {label: {800: 1.6} for label in PAPER} | {"Gaussian prior": {800: 1.5}}
    flat, steep = [(share, 1.3) for share in REMOVED], [(share, 1.3 + share) for share in REMOVED]
    assert [c.holds for c in _checks(good, flat)] == [True] * 3 and [
        c.holds for c in _checks(bad, steep)
    ] == [False] * 3


def test_widths_are_numbers():
    with pytest.raises(SettingError, match="widths='many'; expected whole numbers with commas"):
        make_experiment("blundell", {"widths": "many"})._widths()
