"""The toy of the experiment on distillation: data, distances, figures."""

import json
import math

import pytest
import torch

from credo.report.curve_figures import curves
from credo.report.image_figures import mosaic
from credo_reproduce.dark_toy import Toy, _checks, _maps, against, clouds, divergence, toy


def test_data_repeat_and_are_two_balanced_clouds():
    (x, y), (again, _), (other, _) = clouds(0), clouds(0), clouds(1)
    assert torch.equal(x, again) and not torch.equal(x, other) and y.bincount().tolist() == [10, 10]
    assert float((x[y == 1] - x[y == 0]).mean()) > 1.0


def test_divergence_is_that_of_bernoullis_and_finite_where_a_prediction_is_certain():
    p, q = torch.tensor([[0.3, 0.7], [0.5, 0.5]]), torch.tensor([[0.6, 0.4], [0.5, 0.5]])
    expected = 0.5 * (0.3 * math.log(0.3 / 0.6) + 0.7 * math.log(0.7 / 0.4))
    assert divergence(p, q) == pytest.approx(expected, rel=1e-6) and divergence(p, p) == 0.0
    assert 1.0 < divergence(p, torch.tensor([[1.0, 0.0], [1.0, 0.0]])) < math.inf


def test_checks():
    good = {"point": 0.2, "sampler": 0.005, "student": 0.006}
    assert [check.holds for check in _checks(good)] == [True] * 3
    assert [
        check.holds for check in _checks({"point": 0.05, "sampler": 0.008, "student": 0.0095})
    ] == [False] * 3


def test_maps_have_the_second_coordinate_upwards():
    """The first picture is 1 where the first input is large, the second where the second is: right
    half, upper half.
    """
    axis = torch.linspace(-1, 1, 4)
    grid = torch.cartesian_prod(axis, axis)
    maps = {
        name: torch.stack([grid[:, d] < 0, grid[:, d] > 0], 1).double()
        for d, name in enumerate(("a", "b"))
    }
    entry = _maps(maps, 4)
    right, upper = torch.tensor(entry["pixels"]).reshape(2, 4, 4)
    assert right[:, 2:].all() and not right[:, :2].any() and upper[:2].all() and not upper[2:].any()
    json.dumps(mosaic(entry))


def test_entropies_are_drawn_against_each_other():
    entry = against("t", torch.tensor([0.1, 0.6]), torch.tensor([0.2, 0.5]))
    assert entry["lines"][0]["x"] == [0.0, pytest.approx(0.6)] and entry["points"][0][
        "y"
    ] == pytest.approx([0.2, 0.5])
    json.dumps(curves(entry))


def test_a_small_run_repeats_with_its_seed():
    said = []
    sizes = Toy(
        cells=5, truth_warmup=10, truth_draws=10, draws=5, points=30, epochs=3, hidden=(6, 6)
    )
    before = torch.get_rng_state()
    first, again = (toy(sizes, 0, said.append) for _ in range(2))
    assert torch.equal(before, torch.get_rng_state())
    assert [row.measured for row in first.table.rows] == [row.measured for row in again.table.rows]
    assert [row.measured["passes per prediction"] for row in first.table.rows] == [1, 20, 1]
    assert [row.paper["KL from the truth"] for row in first.table.rows] == [0.246, 0.007, 0.009]
    assert (
        "2-6-6-2" in first.table.rows[2].label
        and len(first.checks) == 4
        and any("KL from the truth" in line for line in said)
    )
