"""The conjugate posteriors against brute force, and an earlier one as the next prior."""

import math

import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal, Normal, StudentT
from zoo.curvature import make_job
from zoo.models import make_model

from credo.core.errors import SettingError
from credo.core.sites import FlatLayout
from credo.likelihoods import Gaussian
from credo.methods.exact.parts.conjugate_regression import (
    known_noise,
    regression_prior,
    unknown_noise,
)
from credo.posteriors import Posterior, PosteriorPrior
from credo.priors import Learned


def problem(n=12):
    torch.manual_seed(0)
    x = torch.randn(n, 2, dtype=torch.float64)
    y = x @ torch.tensor([[1.0], [-0.5]], dtype=torch.float64) + 0.3
    model = make_model(
        nn.Linear(2, 1).double(), likelihood=Gaussian(std=0.5), prior=Normal(0.0, 2.0)
    )
    layout = FlatLayout({name: site.shape for name, site in model.random.items()})
    design = torch.cat([x, torch.ones(n, 1).double()], 1)
    return model, layout, make_job(x, y + 0.1 * torch.randn_like(y)), design


def test_known_noise_has_the_evidence_of_the_joint_normal():
    """log p(D) = log N(y; 0, 4 X X^T + 0.25 I)."""
    model, layout, fit_job, design = problem()
    family, evidence = known_noise(
        model, fit_job, layout, regression_prior(model, layout, False, 0.01, 0.01)
    )
    cover = 4.0 * design @ design.T + 0.25 * torch.eye(len(design)).double()
    y = fit_job.source.targets()[:, 0]
    expected = MultivariateNormal(torch.zeros_like(y), cover).log_prob(y)
    assert evidence == pytest.approx(float(expected), rel=1e-10)
    precision = design.T @ design / 0.25 + torch.eye(3).double() / 4.0
    torch.testing.assert_close(family.covariance().detach(), torch.linalg.inv(precision))


def test_unknown_noise_has_the_evidence_of_one_datum_as_a_t():
    """One datum: y ~ t with 2 a degrees of freedom and scale^2 = b / a (1 + 4 x x^T)."""
    model, layout, _, _ = problem()
    x, y = torch.tensor([[0.5, -1.0]]).double(), torch.tensor([[0.7]]).double()
    shape, rate = 1.5, 0.8
    prior = regression_prior(model, layout, True, shape, rate)
    family, evidence = unknown_noise(model, make_job(x, y), layout, prior)
    scale = math.sqrt(rate / shape * (1.0 + 4.0 * (0.25 + 1.0 + 1.0)))
    expected = StudentT(torch.tensor(2.0 * shape).double(), 0.0, scale).log_prob(y)
    assert evidence == pytest.approx(float(expected), rel=1e-9)
    assert family.shape_rate.tolist()[0] == shape + 0.5


@pytest.mark.parametrize("unknown", [False, True])
def test_an_earlier_posterior_of_the_same_kind_is_the_prior(unknown):
    model, layout, fit_job, _ = problem()
    solve_for = unknown_noise if unknown else known_noise
    prior = regression_prior(model, layout, unknown, 2.0, 1.0)
    family, _ = solve_for(model, fit_job, layout, prior)
    model.prior = PosteriorPrior(Posterior([family]))
    again = regression_prior(model, layout, unknown, 7.0, 7.0)
    torch.testing.assert_close(again.mean, family.flat_mean.detach())
    normal = family.conjugate_normal()
    torch.testing.assert_close(
        torch.linalg.inv(again.precision), normal.tril @ normal.tril.T, rtol=1e-6, atol=1e-12
    )
    assert (again.shape, again.rate) == (normal.noise if unknown else (0.0, 0.0))


def test_a_learned_prior_is_refused():
    model, layout, _, _ = problem()
    model.prior = Learned(Normal(0.0, 1.0)).fresh(model.random)
    with pytest.raises(SettingError, match="exact needs a fixed prior"):
        regression_prior(model, layout, False, 0.01, 0.01)
