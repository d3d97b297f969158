"""Training by moments against closed forms; the rules themselves are tested in ``moments``."""

import pytest
import torch
from torch import nn
from zoo.models import make_model, make_posterior
from zoo.networks import make

from credo.core.errors import CredoError, NetworkError
from credo.core.seeds import isolated
from credo.engine.elbo import Elbo
from credo.estimators import Deterministic, estimators
from credo.likelihoods import Gaussian

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(7, 3, generator=GENERATOR, dtype=torch.float64)
Y = torch.randn(7, 2, generator=GENERATOR, dtype=torch.float64)
STD = 0.5


def linear(kind, covariance="diagonal"):
    with isolated(0):
        net = nn.Linear(3, 2).double()
    model = make_model(net, likelihood=Gaussian(std=STD))
    return Elbo(model, make_posterior(kind, model), Deterministic(covariance))


def closed_form(family):
    """E[nll] of linear regression: the nll at the mean plus the predictive variance of every output
    over 2 s^2.
    """
    mean, var = family.marginals()
    nll = -torch.distributions.Normal(X @ mean["weight"].T + mean["bias"], STD).log_prob(Y).sum()
    if family.name in ("mean_field",):
        spread = (X**2) @ var["weight"].T + var["bias"]
    else:
        cov = family.covariance()  # weight (2, 3) row by row, then bias (2,)
        rows = []
        for o in range(2):
            place = [3 * o, 3 * o + 1, 3 * o + 2, 6 + o]
            design = torch.cat([X, torch.ones(7, 1).double()], 1)
            rows.append(((design @ cov[place][:, place]) * design).sum(1))
        spread = torch.stack(rows, 1)
    return nll + spread.sum() / (2 * STD**2)


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
@pytest.mark.parametrize("kind", ["mean_field", "full"])
def test_value_and_gradient_of_linear_regression_are_the_closed_forms(kind, covariance):
    elbo = linear(kind, covariance)
    family = elbo.posterior.factors[0]
    nll, _ = elbo(X, Y)
    exact = closed_form(family)
    assert torch.allclose(nll, exact, rtol=1e-10)
    parameters = list(family.parameters())
    ours, theirs = torch.autograd.grad(nll, parameters), torch.autograd.grad(exact, parameters)
    assert all(
        torch.allclose(a, b, rtol=1e-8, atol=1e-10) for a, b in zip(ours, theirs, strict=True)
    )


def test_two_passes_are_the_same():
    elbo = linear("mean_field")
    assert torch.equal(elbo(X, Y)[0], elbo(X, Y)[0])


def test_an_operation_without_a_rule_is_named():
    net, x = make("lstm")
    model = make_model(net, likelihood=Gaussian(std=STD))
    elbo = Elbo(model, make_posterior("mean_field", model), estimators["moments"])
    with pytest.raises(CredoError, match="lstm"):
        elbo(x, torch.zeros(3, 2).double())


def test_outputs_without_moments_are_an_error():
    elbo = linear("mean_field")
    with pytest.raises(
        NetworkError,
        match="No random parameter reached the network's output by an operation with a rule",
    ):
        elbo.estimator.nll(elbo.likelihood, X, Y)


def test_points_have_no_variance():
    net, x = make("mlp")
    model = make_model(net, "last", Gaussian(std=STD))
    elbo = Elbo(model, make_posterior("mean_field", model), Deterministic())
    nll, kl = elbo(x, torch.zeros(3, 2).double())
    (nll + kl).backward()
    assert all(p.grad.abs().max() > 0 for p in elbo.posterior.parameters())
