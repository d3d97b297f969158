from functools import cache

import pytest
import torch
from zoo import regression
from zoo.chains import draws_of, kinetic_is_chi_squared, last_layer, late, noise_error, score
from zoo.stats import Z

from credo.core.errors import SettingError


def fit(scale=1.0, **how):
    """``scale``: of the first input, whose weight has then another size than the others."""
    x, y, _ = regression.problem()
    x = x * torch.tensor([scale, 1.0, 1.0], dtype=x.dtype)
    how = {"num_chains": 8, "num_warmup": 60, "num_draws": 60} | how
    return regression.bnn().fit((x, y), "nuts", progress=False, **how)


@cache
def plain():
    return fit(num_warmup=100, num_draws=100)


@pytest.mark.parametrize("depth", [1, 3])
def test_a_depth_bounds_the_steps(depth):
    """Before a metric is learned, an input a hundred times as large makes trajectories that would
    go on.
    """
    fitted = fit(100.0, max_depth=depth, num_warmup=8, num_draws=5, num_chains=1)
    assert max(row["steps"] for row in fitted.history) == 2**depth - 1
    assert max(row["depth"] for row in fitted.history) == depth


def test_trajectories_end_by_themselves():
    """Of four weights under their metric half a period is three to fifteen steps: nowhere near the
    bound.
    """
    fitted = plain()
    steps, depth = late(fitted, "steps"), late(fitted, "depth")
    assert min(steps) >= 1 and sum(steps) / len(steps) < 16 and max(depth) < 6
    assert len({round(s, 6) for s in steps}) > 1


def test_a_tree_has_as_many_steps_as_its_depth_allows():
    """Of one chain: the doublings that were whole, and a part of the last."""
    for row in fit(num_chains=1, num_warmup=30, num_draws=30).history:
        assert 2 ** (row["depth"] - 1) <= row["steps"] <= 2 ** row["depth"] - 1


def test_positions_and_momenta_are_drawn_jointly():
    kinetic_is_chi_squared(plain())


@pytest.mark.slow
def test_a_shallow_tree_draws_the_same_posterior():
    """Bounding the depth costs effective draws, not correctness."""
    x, y, design = regression.problem()
    mean, cov, _ = (torch.as_tensor(part) for part in regression.exact(design, y[:, 0].numpy()))
    draws = draws_of(fit(max_depth=2, num_chains=16, num_warmup=150, num_draws=150))
    assert score(draws, mean, cov.diagonal()) < Z < score(draws, mean, 1.5 * cov.diagonal())


@pytest.mark.slow
def test_a_last_layer_alone():
    last_layer("nuts", num_warmup=150, num_draws=5, num_chains=2, max_depth=2, lr=0.05)


@pytest.mark.slow
def test_learned_noise():
    assert noise_error("nuts", num_warmup=150, num_draws=2, max_depth=2, num_chains=8, lr=0.02) < 1


@pytest.mark.parametrize("depth", [0, 21, 2.5])
def test_a_bad_depth_is_named(depth):
    with pytest.raises(SettingError, match="max_depth"):
        fit(max_depth=depth)
