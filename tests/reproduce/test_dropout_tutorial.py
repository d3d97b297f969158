"""Tests of the dropout tutorial's experiment."""

import pytest

from credo.core.errors import DataError
from credo.data import load
from credo_reproduce.base import make_experiment, perform
from credo_reproduce.dropout_tutorial import KINDS, _checks


def test_checks_compare_sampled_accuracy_with_the_tutorials_lower_edge():
    good = {kind.label: [(0.0, 95.0), (0.0, 95.0)] for kind in KINDS}
    bad = good | {"MC dropout": [(99.0, 89.9), (99.0, 89.9)]}
    assert [c.holds for c in _checks(good)] == [True, True, True]
    assert [c.holds for c in _checks(bad)] == [False, True, True]


def test_a_quick_run():
    try:
        load("mnist")
    except DataError as error:
        pytest.skip(f"needs MNIST: {error}")
    result = perform(make_experiment("dropout_tutorial", {"quick": True}))
    table, keeps, spread = result.outcome.tables
    assert [row.label for row in table.rows] == [kind.label for kind in KINDS]
    assert "sampled" not in table.rows[0].measured and "±" in str(table.rows[1].measured["sampled"])
    assert all(0 < float(v) < 1 for row in keeps.rows for v in row.measured.values())
    assert {"real images", "blended images", "rotated images"} <= {row.label for row in spread.rows}
    assert len(result.outcome.figures) == 2 + 6 + 1
