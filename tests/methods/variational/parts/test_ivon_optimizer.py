"""One and two steps of the optimizer against the recursion written in numpy."""

import numpy as np
import pytest
import torch

from credo.methods.variational.parts.ivon_optimizer import Ivon, Newton
from credo.posteriors import MeanField
from credo.posteriors.std_transform import NormalStats

NEWTON = Newton(beta1=0.9, beta2=0.95, hess_init=0.2, effective=50.0)


def by_hand(mean, gradients, prior_mean, prior_var, lr, point_lr):
    """Mean and std after steps with these (gradient, gradient of log std); ``lambda (h + delta)``
    is the precision.
    """
    delta = 1 / (NEWTON.effective * prior_var)
    h, momentum = np.full_like(mean, NEWTON.hess_init), np.zeros_like(mean)
    for t, (g, g_log_std) in enumerate(gradients, 1):
        var = 1 / (NEWTON.effective * (h + delta))
        estimate = g_log_std / var
        momentum = 0.9 * momentum + 0.1 * g
        rate = max(0.05, 20 / (t + 1000))
        h = (1 - rate) * h + rate * estimate + 0.5 * rate**2 * (h - estimate) ** 2 / (h + delta)
        newton = (momentum / (1 - 0.9**t) + delta * (mean - prior_mean)) / (h + delta)
        mean = mean - np.clip(lr * newton, -point_lr, point_lr)
    return mean, 1 / np.sqrt(NEWTON.effective * (h + delta))


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("prior_mean", [0.0, 0.7])
@pytest.mark.parametrize("point_lr", [0.01, 10.0])  # most moves are too long, or none is
def test_the_recursion(steps, prior_mean, point_lr):
    rng = np.random.default_rng(0)
    start, prior_var = rng.normal(size=5), rng.uniform(0.5, 2.0, 5)
    family = MeanField.start({"w": torch.from_numpy(start)}, 0.3)
    point = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
    stats = NormalStats(
        None if prior_mean == 0 else torch.full((5,), prior_mean).double(),
        torch.from_numpy(prior_var),
    )
    optimizer = Ivon(
        [family.flat_mean, family.raw_std, point], 0.3, [(family, stats)], NEWTON, point_lr
    )
    initial = 1 / np.sqrt(50.0 * (0.2 + 1 / (50.0 * prior_var)))
    assert np.allclose(family.raw_std.detach().exp(), initial), (
        "the spread starts from hess_init, not from init_std"
    )
    gradients = [(rng.normal(size=5), 0.01 * rng.normal(size=5)) for _ in range(steps)]
    for g, g_log_std in gradients:
        family.flat_mean.grad, family.raw_std.grad = (
            torch.from_numpy(g.copy()),
            torch.from_numpy(g_log_std.copy()),
        )
        optimizer.step()
    mean, std = by_hand(start, gradients, prior_mean, prior_var, 0.3, point_lr)
    assert np.allclose(
        family.flat_mean.detach(), mean, rtol=1e-5
    )  # the step counter is kept in single precision
    assert np.allclose(family.raw_std.detach().exp(), std, rtol=1e-6)
    assert torch.equal(point, torch.zeros_like(point)), "a point without a gradient stays"


def test_the_precision_stays_positive_whatever_the_curvature_estimate():
    """The quadratic correction of the update keeps h + delta above zero even for estimates far
    below zero.
    """
    family = MeanField.start({"w": torch.zeros(200).double()}, 0.3)
    optimizer = Ivon(
        list(family.parameters()), 0.1, [(family, NormalStats(None, torch.ones(())))], NEWTON
    )
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        family.flat_mean.grad = torch.randn(200, generator=generator, dtype=torch.float64)
        family.raw_std.grad = (
            0.1 * torch.randn(200, generator=generator, dtype=torch.float64) - 0.04
        )
        optimizer.step()
    assert (
        torch.isfinite(family.raw_std).all()
        and (optimizer.state[family.flat_mean]["hessian"] + 0.02 > 0).all()
    )


def test_groups_keep_the_ratio_of_their_rates():
    family = MeanField.start({"w": torch.zeros(2)}, 0.3)
    point = torch.nn.Parameter(torch.zeros(2))
    optimizer = Ivon(
        [*family.parameters(), point],
        0.2,
        [(family, NormalStats(None, torch.ones(())))],
        NEWTON,
        point_lr=0.01,
    )
    assert [group["factor"] for group in optimizer.param_groups] == [1.0, 0.01 / 0.2]
