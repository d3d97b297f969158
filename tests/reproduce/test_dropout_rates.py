"""Tests of the experiment on learned drop rates."""

import pytest
import torch

from credo.core.errors import DataError, SettingError
from credo.data import load
from credo_reproduce.base import make_experiment, perform
from credo_reproduce.dropout_rates import _checks, _chosen, _numbers


def test_each_half_is_scored_at_the_rate_that_is_best_on_the_other():
    even, odd = torch.arange(6) % 2 == 0, torch.arange(6) % 2 == 1
    # 0.1 is best on even images, 0.5 on odd ones
    cells = {0.1: torch.where(even, 1.0, 5.0), 0.5: torch.where(odd, 2.0, 9.0)}
    assert torch.equal(_chosen(cells), torch.where(even, cells[0.5], cells[0.1]))


def test_checks_ask_for_falling_rates_and_no_higher_nll():
    learned = {n: [{"input": r, "nll": 1.0, "error": 2.0}] for n, r in ((10, 0.4), (20, 0.3))}
    ours, theirs = torch.zeros(4) + 1.0, torch.zeros(4) + 1.1
    checks = _checks(learned, {10: (ours, theirs), 20: (theirs, ours)})
    assert [c.holds for c in checks] == [True, True, False]
    learned[20][0]["input"] = 0.5
    assert not _checks(learned, {10: (ours, theirs), 20: (ours, theirs)})[0].holds


def test_numbers_are_numbers():
    assert _numbers("rates", "0.1,0.5") == [0.1, 0.5]
    with pytest.raises(SettingError, match="rates='0.1;0.5'"):
        _numbers("rates", "0.1;0.5")


def test_a_quick_run():
    try:
        load("mnist")
    except DataError as error:
        pytest.skip(f"needs MNIST: {error}")
    result = perform(make_experiment("dropout_rates", {"quick": True}))
    learned, grid = result.outcome.tables
    assert [row.label for row in learned.rows] == ["100 images", "300 images"]
    assert set(learned.rows[0].measured) == {
        "input",
        "first hidden layer",
        "second hidden layer",
        "nll",
        "error",
        "best fixed rate",
        "grid search, nll",
    }
    assert (
        grid.columns == ["p = 0.1", "p = 0.5"]
        and len(result.outcome.figures) == 3
        and len(result.outcome.checks) == 5
    )
