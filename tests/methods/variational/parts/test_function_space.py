"""Tests of the bound in function space."""

import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal, Normal, kl_divergence

import credo
from credo.core.errors import SettingError
from credo.core.seeds import isolated
from credo.data.intake import intake
from credo.estimators import estimators
from credo.methods.variational.parts.function_space import (
    FunctionElbo,
    GaussianProcessPrior,
    Measurement,
    NetworkPrior,
)
from credo.posteriors import Start

X = torch.randn(12, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
Y = torch.randn(12, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def elbo(net, prior, kind="mean_field", outside=0, std=0.3):
    model = credo.BNN(net, credo.likelihoods.Gaussian(std=0.5), prior=Normal(0.2, 0.7)).model
    posterior = model.posterior(kind, model.values(), Start(std, "log", 2, seed=0))
    measurement = Measurement(intake((X, Y), dtype=torch.float64), 12, outside, 0.5, model.device)
    return FunctionElbo(model, posterior, estimators["weights"], 1, prior, measurement)


def linear():
    with isolated(0):
        return nn.Linear(2, 1).double()


@pytest.mark.parametrize("kind", ["mean_field", "full", "low_rank"])
def test_for_a_linear_network_functions_diverge_as_weights_do(kind):
    """Three weights, twelve points: the map from weights to values is one to one, so both
    divergences are equal but for the nugget.
    """
    module = elbo(linear(), NetworkPrior(), kind)
    family = module.posterior.factors[0]
    prior = family.prior_from(module.model.prior, module.model.sites)
    weights = float(credo.posteriors.kl(family, prior))
    assert float(module.function_kl(X)) == pytest.approx(weights, rel=2e-3)
    assert float(module.function_kl(X[:2])) < weights  # fewer points show less


def test_against_a_gaussian_process_it_is_the_divergence_of_two_gaussians():
    module = elbo(linear(), GaussianProcessPrior(0.8, 1.3))
    family = module.posterior.factors[0]
    design = torch.cat([X, torch.ones(12, 1, dtype=torch.float64)], 1)
    kernel = 1.3**2 * torch.exp(-0.5 * torch.cdist(X, X) ** 2 / 0.8**2)
    nugget = GaussianProcessPrior.nugget * 1.3**2 * torch.eye(12, dtype=torch.float64)
    weights = torch.cat([v.reshape(-1) for v in family.mean().values()])
    q = MultivariateNormal(design @ weights, 0.3**2 * design @ design.T + nugget)
    expected = kl_divergence(
        q, MultivariateNormal(torch.zeros(12, dtype=torch.float64), kernel + nugget)
    )
    assert float(module.function_kl(X)) == pytest.approx(float(expected), rel=1e-9)


def test_gradients_reach_means_and_deviations_of_a_network():
    with isolated(0):
        net = credo.nets.mlp(2, (5,), 2, activation="tanh").double()
    module = elbo(net, GaussianProcessPrior(1.0, 1.0))
    module.function_kl(X).backward()
    for parameter in module.posterior.parameters():
        assert parameter.grad is not None and bool(parameter.grad.abs().sum() > 0)


def test_measurement_points_are_of_the_batch_and_of_a_box_around_all_inputs():
    source = intake((X, Y), dtype=torch.float64)
    torch.manual_seed(0)
    points = Measurement(source, 3, 200, 0.5, torch.device("cpu")).points(X[:6])
    inside = points[:3]
    assert points.shape == (203, 2) and all(any(torch.equal(p, x) for x in X[:6]) for p in inside)
    low, high = X.amin(0), X.amax(0)
    pad = 0.5 * (high - low)
    assert bool((points[3:] >= low - pad).all()) and bool((points[3:] <= high + pad).all())
    assert bool((points[3:] < low).any()) and bool((points[3:] > high).any())


def test_token_inputs_have_no_box():
    tokens = torch.randint(5, (12, 3))
    source = intake((tokens, Y))
    assert Measurement(source, 4, None, 0.5, torch.device("cpu")).points(tokens).shape == (4, 3)
    with pytest.raises(
        SettingError, match="num_outside=8 points beyond the data need inputs of one float tensor"
    ):
        Measurement(source, 4, 8, 0.5, torch.device("cpu"))
