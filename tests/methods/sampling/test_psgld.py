import math

import pytest
import torch
from zoo import regression
from zoo.chains import draws_of, last_layer, noise_error

from credo.data import intake
from credo.engine.fit_job import FitJob
from credo.methods import PSGLD
from credo.methods.sampling.parts.density import Density
from credo.methods.sampling.psgld import PSGLDMoves

NUM = 30


def data(scale=1.0):
    """``scale``: of the last input; its weight has another curvature than the others."""
    x, y, _ = regression.problem(n=NUM)
    return x * torch.tensor([1.0, 1.0, scale], dtype=x.dtype), y


def states(moves=60, scale=0.1, lr=0.05, **how):
    method = PSGLD(**({"num_chains": 16, "num_warmup": 40} | how))
    model = regression.bnn().model
    moving = PSGLDMoves(
        method, Density(model, model.values()), FitJob(intake(data(scale)), 1, None, lr, 0)
    )
    position = torch.randn(16, 4, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    state = moving.start(position, torch.Generator().manual_seed(0))
    yield state
    for index in range(moves):
        state, _ = moving.move(state, index, torch.Generator().manual_seed(index + 1))
        yield state


def test_the_scale_has_mean_one_and_is_fixed_after_the_warm_up():
    scales = [state.scale for state in states()]
    assert all(
        math.isclose(float(scale.mean()), 1.0, rel_tol=1e-12) and (scale > 0).all()
        for scale in scales
    )
    assert not torch.equal(scales[39], scales[40]) and all(
        torch.equal(scale, scales[40]) for scale in scales[41:]
    )


def test_the_scale_is_large_where_slopes_are_small():
    scale = list(states(scale=0.02))[-1].scale
    assert int(scale.argmax()) == 2 and float(scale[2]) > 2 * float(scale[[0, 1, 3]].max())


def test_damping_evens_the_scale_out():
    wide, even = (list(states(scale=0.02, eps=eps))[-1].scale for eps in (0.01, 100.0))
    assert float(even.max() / even.min()) < 1.1 < 3 < float(wide.max() / wide.min())


def test_without_a_warm_up_it_is_sgld():
    how = {
        "lr": 0.1,
        "num_chains": 2,
        "num_warmup": 0,
        "num_draws": 5,
        "thin": 2,
        "batch_size": 10,
        "progress": False,
    }
    plain, scaled = (regression.bnn().fit(data(), method, **how) for method in ("sgld", "psgld"))
    assert torch.equal(draws_of(plain), draws_of(scaled))


@pytest.mark.parametrize("temperature", [0.25, 4.0])
def test_temperature_scales_the_spread_by_its_root(temperature):
    """From the mode: slopes scale with the noise, and their relative sizes, which make the scale,
    do not change.
    """
    x, y, design = regression.problem(n=NUM)
    mean, *_ = (torch.as_tensor(part) for part in regression.exact(design, y[:, 0].numpy()))
    start = {"weight": mean[:3].reshape(1, 3), "bias": mean[3:]}
    how = {
        "lr": 0.1,
        "num_chains": 3,
        "num_warmup": 20,
        "num_draws": 10,
        "batch_size": NUM,
        "init": start,
        "progress": False,
    }
    plain, hot = (
        draws_of(regression.bnn().fit((x, y), "psgld", temperature=t, **how)) - mean
        for t in (1.0, temperature)
    )
    assert (
        torch.allclose(hot, math.sqrt(temperature) * plain, atol=1e-8) and float(plain.std()) > 0.01
    )


def test_at_temperature_zero_draws_have_no_spread():
    how = {
        "lr": 0.1,
        "num_chains": 2,
        "num_warmup": 500,
        "num_draws": 5,
        "batch_size": NUM,
        "progress": False,
    }
    draws = draws_of(regression.bnn().fit(data(), "psgld", temperature=0.0, **how))
    assert float(draws.flatten(0, 1).std(0).max()) < 1e-3


@pytest.mark.slow
def test_a_last_layer_alone():
    last_layer(
        "psgld",
        num_warmup=600,
        num_draws=5,
        num_chains=2,
        thin=5,
        lr=0.05,
        point_lr=0.02,
        batch_size=10,
    )


@pytest.mark.slow
def test_learned_noise():
    assert (
        noise_error("psgld", num_warmup=600, num_draws=2, num_chains=8, lr=0.05, point_lr=0.02) < 1
    )
