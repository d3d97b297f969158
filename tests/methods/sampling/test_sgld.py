import math

import pytest
import torch
from zoo import regression
from zoo.chains import draws_of, last_layer, noise_error

from credo.core.errors import CredoError, SettingError

DOUBLE = torch.float64
NUM = 30


def exact():
    x, y, design = regression.problem(n=NUM)
    mean, cov, _ = (torch.as_tensor(part) for part in regression.exact(design, y[:, 0].numpy()))
    return x, y, mean, cov


def start(mean):
    return {"weight": mean[:3].reshape(1, 3), "bias": mean[3:]}


def fit(init="random", **how):
    x, y, *_ = exact()
    how = {
        "lr": 0.1,
        "num_chains": 3,
        "num_warmup": 20,
        "num_draws": 20,
        "thin": 2,
        "batch_size": NUM,
    } | how
    return regression.bnn().fit((x, y), "sgld", init=init, progress=False, **how)


@pytest.mark.parametrize("temperature", [0.01, 0.5, 4.0])
def test_temperature_scales_the_spread_by_its_root(temperature):
    """A quadratic target is linear dynamics: from the mode, the same noise times sqrt(T) gives the
    same path times sqrt(T), exactly.
    """
    *_, mean, _ = exact()
    plain, hot = (draws_of(fit(start(mean), temperature=t)) - mean for t in (1.0, temperature))
    assert (
        torch.allclose(hot, math.sqrt(temperature) * plain, atol=1e-10)
        and float(plain.std()) > 0.01
    )


def test_at_temperature_zero_draws_have_no_spread():
    *_, mean, cov = exact()
    draws = draws_of(fit(temperature=0.0, num_warmup=500))
    assert float(((draws - mean).abs() / cov.diagonal().sqrt()).max()) < 1e-3


def test_a_step_beyond_the_stable_one_says_so():
    with pytest.raises(CredoError, match="sgld: the log density .*not finite.*smaller lr"):
        fit(lr=10.0, num_warmup=2000)


def test_batches_keep_the_mean():
    """Batch noise adds variance and does not shift: the mean of 64 chains is off by less than a
    fifth of the posterior's deviation. The same random numbers at ten times the step give the wider
    draws.
    """
    *_, mean, cov = exact()
    how = {"batch_size": 10, "num_chains": 64, "num_warmup": 200, "num_draws": 20, "thin": 10}
    draws, hotter = (draws_of(fit(lr=lr, **how)) for lr in (0.02, 0.2))
    assert ((draws.mean((0, 1)) - mean).abs() < 0.2 * cov.diagonal().sqrt()).all()
    assert (hotter.flatten(0, 1).var(0) > 1.2 * draws.flatten(0, 1).var(0)).all()


def test_a_last_layer_alone():
    last_layer(
        "sgld",
        num_warmup=600,
        num_draws=5,
        num_chains=2,
        thin=5,
        lr=0.05,
        point_lr=0.02,
        batch_size=10,
    )


def test_learned_noise():
    assert (
        noise_error("sgld", num_warmup=600, num_draws=2, num_chains=8, lr=0.05, point_lr=0.02) < 1
    )


@pytest.mark.parametrize("bad", [{"temperature": -0.1}, {"point_lr": 0.0}, {"thin": 0}])
def test_bad_settings_are_named(bad):
    with pytest.raises(SettingError, match=next(iter(bad))):
        fit(**bad)
