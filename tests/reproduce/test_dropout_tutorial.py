"""Tests of the dropout tutorial's experiment."""

import math

import pytest
import torch

from credo.core.errors import DataError
from credo.data import load
from credo_reproduce.base import make_experiment, perform
from credo_reproduce.dropout_tutorial import KINDS, _checks, _spread, turned


def test_turning_by_quarters_moves_pixels_and_four_make_a_whole():
    image = torch.zeros(28, 28)
    image[3, 14:20] = 1.0
    quarter = turned(image.reshape(1, 784), 90.0).reshape(28, 28)
    assert torch.allclose(quarter, torch.rot90(image, -1), atol=1e-4)
    whole = image.reshape(1, 784)
    for _ in range(4):
        whole = turned(whole, 90.0)
    assert torch.allclose(whole, image.reshape(1, 784), atol=1e-3)
    assert torch.allclose(turned(image.reshape(784), 0.0), image.reshape(784), atol=1e-5)


def test_a_spread_is_the_sample_deviation():
    mean, deviation = _spread([1.0, 2.0, 3.0])
    assert mean == 2.0 and math.isclose(deviation, 1.0)


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
