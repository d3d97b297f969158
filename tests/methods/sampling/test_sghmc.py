import math

import pytest
import torch
from zoo import regression
from zoo.chains import draws_of, last_layer, noise_error

from credo.core.errors import SettingError
from credo.data import intake
from credo.engine.fit_job import FitJob
from credo.methods import SGHMC
from credo.methods.sampling.parts.density import Density
from credo.methods.sampling.sghmc import SGHMCMoves

NUM = 30


def exact():
    x, y, design = regression.problem(n=NUM)
    mean, cov, _ = (torch.as_tensor(part) for part in regression.exact(design, y[:, 0].numpy()))
    return x, y, mean, cov


def fit(method="sghmc", init="random", **how):
    x, y, *_ = exact()
    how = {
        "lr": 0.1,
        "num_chains": 3,
        "num_warmup": 20,
        "num_draws": 20,
        "thin": 2,
        "batch_size": NUM,
    } | how
    return regression.bnn().fit((x, y), method, init=init, progress=False, **how)


@pytest.mark.parametrize("temperature", [0.01, 4.0])
def test_temperature_scales_the_spread_by_its_root(temperature):
    """From the mode, with momenta of the stationary size: linear dynamics, so exactly."""
    *_, mean, _ = exact()
    start = {"weight": mean[:3].reshape(1, 3), "bias": mean[3:]}
    plain, hot = (draws_of(fit(init=start, temperature=t)) - mean for t in (1.0, temperature))
    assert (
        torch.allclose(hot, math.sqrt(temperature) * plain, atol=1e-10)
        and float(plain.std()) > 0.01
    )


def test_at_temperature_zero_draws_have_no_spread():
    *_, mean, cov = exact()
    draws = draws_of(fit(temperature=0.0, num_warmup=400))
    assert float(((draws - mean).abs() / cov.diagonal().sqrt()).max()) < 1e-3


@pytest.mark.parametrize("friction", [0.1, 1.0])
def test_without_noise_it_is_descent_with_momentum(friction):
    """At T = 0: v <- (1 - c)(v + eta slope), w moves by half of v before friction and half after
    it.
    """
    x, y, *_ = exact()
    method = SGHMC(num_chains=2, friction=friction, temperature=0.0)
    model = regression.bnn().model
    density = Density(model, model.values())
    moves = SGHMCMoves(method, density, FitJob(intake((x, y)), 1, None, 0.3, 0))
    state = moves.start(torch.zeros(2, 4, dtype=torch.float64), torch.Generator().manual_seed(0))
    assert (state.momentum == 0).all()
    design = torch.cat([x, torch.ones(NUM, 1, dtype=x.dtype)], 1)
    w, v = torch.zeros(4, dtype=x.dtype), torch.zeros(4, dtype=x.dtype)
    for index in range(5):
        state, _ = moves.move(state, index, torch.Generator().manual_seed(index))
        slope = design.T @ (y[:, 0] - design @ w) / 0.25 - w / regression.PRIOR_STD**2
        v = v + 0.3 / NUM * slope
        w, v = w + 0.5 * v + 0.5 * (1 - friction) * v, (1 - friction) * v
        assert torch.allclose(state.position, w.expand(2, 4))


def test_momenta_have_the_stationary_size_throughout():
    """Variance eta T, at the start and at the end: within a fifth, four standard errors of the
    variance of 800 momenta.
    """
    x, y, *_ = exact()
    method, model = SGHMC(num_chains=200, temperature=2.0), regression.bnn().model
    moves = SGHMCMoves(
        method, Density(model, model.values()), FitJob(intake((x, y)), 1, None, 0.02, 0)
    )
    state = moves.start(torch.zeros(200, 4, dtype=torch.float64), torch.Generator().manual_seed(0))
    sizes = [float(state.momentum.square().mean())]
    for index in range(150):
        state, _ = moves.move(state, index, torch.Generator().manual_seed(index))
        sizes.append(float(state.momentum.square().mean()))
    for size in (sizes[0], sum(sizes[-50:]) / 50):
        assert abs(size / (0.02 / NUM * 2.0) - 1) < 0.2


@pytest.mark.slow
def test_a_last_layer_alone():
    last_layer(
        "sghmc",
        num_warmup=500,
        num_draws=5,
        num_chains=2,
        thin=5,
        lr=0.03,
        point_lr=0.02,
        batch_size=10,
    )


@pytest.mark.slow
def test_learned_noise():
    assert (
        noise_error("sghmc", num_warmup=500, num_draws=2, num_chains=8, lr=0.05, point_lr=0.02) < 1
    )


@pytest.mark.parametrize("friction", [0.0, 1.1])
def test_bad_friction_is_named(friction):
    with pytest.raises(SettingError, match="friction"):
        fit(friction=friction)
