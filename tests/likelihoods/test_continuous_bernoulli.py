from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import ContinuousBernoulli as TorchContinuousBernoulli

from credo.core.errors import DataError, SettingError
from credo.likelihoods import ContinuousBernoulli
from credo.likelihoods.continuous_bernoulli import (
    SERIES_BELOW,
    ContinuousBernoulliLogits,
    langevin,
    langevin_slope,
    log_normalizer,
    log_sinhc,
)


def logits(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_log_normalizer_formula_and_its_expansion_at_one_half():
    p = torch.tensor([0.05, 0.3, 0.7, 0.99], dtype=torch.float64)
    formula = (2 * torch.atanh(1 - 2 * p)).abs().log() - (1 - 2 * p).abs().log()
    torch.testing.assert_close(log_normalizer(torch.logit(p)), formula, rtol=1e-12, atol=1e-12)
    d = torch.tensor([0.0, 1e-6, -1e-3, 5e-3], dtype=torch.float64)
    # The next term of the expansion is of order d^6 = 2e-14.
    torch.testing.assert_close(
        log_normalizer(torch.logit(0.5 + d)),
        math.log(2) + 4 / 3 * d**2 + 104 / 45 * d**4,
        rtol=0,
        atol=1e-12,
    )


@pytest.mark.parametrize("function", [log_sinhc, langevin, langevin_slope])
def test_series_meets_closed_form(function):
    """No step where series and closed form meet, and the derivatives agree with autograd through
    both.
    """
    u = logits(
        SERIES_BELOW - 1e-12, SERIES_BELOW + 1e-12, -SERIES_BELOW + 1e-12, -SERIES_BELOW - 1e-12
    ).requires_grad_()
    value = function(u)
    torch.testing.assert_close(value[0::2], value[1::2], rtol=1e-11, atol=1e-11)
    (slope,) = torch.autograd.grad(value.sum(), u)
    torch.testing.assert_close(slope[0::2], slope[1::2], rtol=1e-9, atol=1e-9)


def test_derivatives_chain():
    u = logits(-3.0, -0.2, 0.0, 0.4, 7.0).requires_grad_()
    (first,) = torch.autograd.grad(log_sinhc(u).sum(), u)
    torch.testing.assert_close(first, langevin(u).detach(), rtol=1e-12, atol=1e-14)
    (second,) = torch.autograd.grad(langevin(u).sum(), u)
    torch.testing.assert_close(second, langevin_slope(u).detach(), rtol=1e-11, atol=1e-14)


def test_agrees_with_torch_away_from_one_half():
    f = logits(-6.0, -1.0, 0.7, 4.0)
    ours, theirs = ContinuousBernoulliLogits(f), TorchContinuousBernoulli(logits=f)
    y = torch.linspace(0, 1, 4, dtype=torch.float64)
    for mine, reference in (
        (ours.log_prob(y), theirs.log_prob(y)),
        (ours.mean, theirs.mean),
        (ours.variance, theirs.variance),
        (ours.cdf(y), theirs.cdf(y)),
        (ours.icdf(y), theirs.icdf(y)),
        (ours.entropy(), theirs.entropy()),
    ):
        torch.testing.assert_close(mine, reference, rtol=1e-8, atol=1e-8)


def test_single_precision_holds_near_one_half():
    """Float32 against float64 for logits around zero, where forms in the probability lose every
    digit of the variance.
    """
    f = torch.linspace(-0.02, 0.02, 41)
    single, double = ContinuousBernoulliLogits(f), ContinuousBernoulliLogits(f.double())
    eps = torch.finfo(torch.float32).eps
    for name in ("mean", "variance"):
        torch.testing.assert_close(
            getattr(single, name).double(), getattr(double, name), rtol=4 * eps, atol=0
        )
    torch.testing.assert_close(
        single.icdf(torch.tensor(0.3)).double(),
        double.icdf(torch.tensor(0.3).double()),
        rtol=1e-4,
        atol=0,
    )


def test_extreme_logits_stay_finite():
    f = torch.tensor([-300.0, 300.0]).requires_grad_()
    law = ContinuousBernoulliLogits(f)
    total = (
        law.log_prob(torch.tensor([0.5, 0.5])).sum()
        + law.mean.sum()
        + law.variance.sum()
        + law.entropy().sum()
    )
    (gradient,) = torch.autograd.grad(total + law.cdf(torch.tensor(0.9)).sum(), f)
    assert bool(total.isfinite()) and bool(gradient.isfinite().all())


def test_icdf_inverts_cdf_and_rsample_follows():
    f = logits(-8.0, -1e-5, 0.0, 1e-3, 12.0)
    law = ContinuousBernoulliLogits(f)
    q = logits(0.1, 0.25, 0.5, 0.75, 0.99)
    torch.testing.assert_close(law.cdf(law.icdf(q)), q, rtol=1e-9, atol=1e-9)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        draws = law.expand((5,)).rsample((4000,))
    # Five z-tests with failure rate 6e-5 each.
    assert ((draws.mean(0) - law.mean) / (law.variance / 4000).sqrt()).abs().max() < 4.0


def test_targets_stay_in_the_unit_interval():
    with pytest.raises(DataError, match=r"row 1, column 0 is 1\.5; expected a number from 0 to 1"):
        ContinuousBernoulli().check_targets(torch.tensor([0.2, 1.5]))
    quantile = ContinuousBernoulli().mixture_quantile(torch.tensor([[[-40.0]], [[40.0]]]), 0.999)
    assert 0.9 < quantile.item() <= 1.0


def test_a_limit_bounds_the_parameter_and_the_density():
    free, bound = ContinuousBernoulli(), ContinuousBernoulli(limit=16.0)
    f = torch.tensor([[-1000.0], [-0.5], [0.0], [1000.0]], dtype=torch.float64)
    inside = 16.0 * torch.tanh(f / 16.0)
    y = torch.tensor([[0.0], [0.3], [0.9], [1.0]], dtype=torch.float64)
    torch.testing.assert_close(bound.log_prob(f, y), free.log_prob(inside, y))
    torch.testing.assert_close(bound.moments(f)[0], free.moments(inside)[0])
    torch.testing.assert_close(bound.sample(f, 3), free.sample(inside, 3))
    assert float(bound.log_prob(f, y).max()) == pytest.approx(math.log(16.0), abs=1e-6)
    assert (
        ContinuousBernoulli.from_config(bound.config()).limit == 16.0
        and ContinuousBernoulli.from_config({}).limit is None
    )
    for bad in (0.0, -1.0, math.inf, True, "16"):
        with pytest.raises(SettingError, match="limit="):
            ContinuousBernoulli(limit=bad)  # type: ignore[arg-type]


def test_first_and_second_derivatives_of_log_sinhc():
    u = torch.tensor(
        [-30.0, -2.0, -0.3, 0.0, 1e-3, 0.499, 0.501, 7.0, 60.0],
        dtype=torch.float64,
        requires_grad=True,
    )
    assert torch.autograd.gradcheck(log_sinhc, u) and torch.autograd.gradgradcheck(log_sinhc, u)
    torch.testing.assert_close(torch.vmap(log_sinhc)(u), log_sinhc(u))
    single = log_sinhc(u.detach().float()).double()
    torch.testing.assert_close(single, log_sinhc(u).detach(), rtol=1e-6, atol=1e-7)
