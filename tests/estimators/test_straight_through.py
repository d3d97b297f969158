"""Biased gradients through discrete weights, measured against enumeration."""

import pytest
import torch
from torch import nn
from zoo.gradients import Enumerated, gradients, joined
from zoo.models import make_model, make_posterior, shaken
from zoo.stats import has_mean

from credo.core.errors import SettingError
from credo.core.seeds import isolated
from credo.engine.elbo import Elbo
from credo.estimators import Gumbel, StraightThrough, estimators
from credo.likelihoods import Gaussian
from credo.posteriors import Posterior, Start

DRAWS = 20_000
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(6, 3, generator=GENERATOR, dtype=torch.float64)
Y = torch.randn(6, 1, generator=GENERATOR, dtype=torch.float64)


def network(estimator, hidden=True, levels=(-1.0, 1.0), kl="closed", std=1.0):
    with isolated(1):
        deep = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1, bias=False))
        net = (deep if hidden else nn.Linear(3, 1)).double()
    model = make_model(net, likelihood=Gaussian(std=std))
    posterior = shaken(model.posterior("discrete", model.values(), Start(levels=levels)), size=0.5)
    return Elbo(model, posterior, estimator, kl=kl)


def exact_gradient(elbo):
    logits = elbo.posterior.factors[0].logits.detach().requires_grad_()
    (exact,) = torch.autograd.grad(-Enumerated(elbo, X, Y).elbo_of(logits), logits)
    return exact.flatten()


def bias(estimator, **how):
    """Length of the mean gradient's error, in lengths of the exact gradient, and the gradient's
    spread likewise.
    """
    elbo = network(estimator, **how)
    exact, draws = exact_gradient(elbo), joined(gradients(elbo, X, Y, DRAWS))
    return float((draws.mean(0) - exact).norm() / exact.norm()), float(
        draws.var(0).sum().sqrt() / exact.norm()
    )


@pytest.mark.parametrize("estimator", [StraightThrough(), Gumbel(0.5)])
def test_values_are_hard_and_on_the_levels(estimator):
    elbo = network(estimator, levels=(-1.0, 0.0, 2.0))
    shell = elbo.model.shell()
    shell.place(elbo.model.frozen())
    with isolated(0):
        estimator.place(shell, elbo.posterior, elbo.plan(shell, X))
    seen = torch.cat([shell.placed(n).detach().flatten() for n in elbo.model.random])
    # the relaxation adds and subtracts the same number: one rounding of values up to 2 in double
    # precision
    assert torch.allclose(seen, seen.round(), atol=1e-14) and set(seen.round().tolist()) <= {
        -1.0,
        0.0,
        2.0,
    }


def test_both_are_biased_and_a_lower_temperature_is_less_so(capsys):
    measured = {"straight_through": bias(StraightThrough())}
    measured |= {f"gumbel {t}": bias(Gumbel(t)) for t in (2.0, 0.5, 0.1)}
    with capsys.disabled():
        print(
            "\nbias and spread, in lengths of the gradient: "
            f"{ {k: (round(b, 3), round(s, 1)) for k, (b, s) in measured.items()} }"
        )
    assert measured["straight_through"][0] > 0.05
    assert measured["gumbel 0.1"][0] < measured["gumbel 0.5"][0] < measured["gumbel 2.0"][0]
    assert measured["gumbel 0.1"][1] > measured["gumbel 0.5"][1] > measured["gumbel 2.0"][1], (
        "the price is variance"
    )
    assert all(b < 1 for b, _ in measured.values()), "the mean gradient still points downhill"


def test_straight_through_is_unbiased_where_the_loss_is_linear_in_the_weights():
    class Linear(Gaussian):
        def log_prob(self, outputs, y):
            return (outputs * y).squeeze(-1)

    elbo = network(StraightThrough(), hidden=False)
    linear = Elbo(
        make_model(elbo.model.net, likelihood=Linear(std=1.0)), elbo.posterior, StraightThrough()
    )
    has_mean(joined(gradients(linear, X, Y, DRAWS)), exact_gradient(linear))


@pytest.mark.parametrize("name", ["straight_through", "gumbel"])
def test_continuous_families_are_refused(name):
    model = make_model(nn.Linear(3, 1).double())
    for kind in ("mean_field", "full"):
        with pytest.raises(
            SettingError,
            match=f"estimator='{name}' is for discrete weights; the family '{kind}' is continuous",
        ):
            estimators[name].check(make_posterior(kind, model))
    estimators[name].check(make_posterior("delta", model))


@pytest.mark.parametrize("name", ["local", "weights", "flipout", "per_example", "moments"])
def test_continuous_estimators_refuse_discrete_families(name):
    with pytest.raises(
        SettingError, match=f"estimator='{name}' has no gradient for the discrete family 'discrete'"
    ):
        estimators[name].check(network(StraightThrough()).posterior)


@pytest.mark.parametrize("estimator", [StraightThrough(), Gumbel()])
def test_a_sampled_kl_is_refused_because_it_has_no_gradient(estimator):
    with pytest.raises(SettingError, match="in closed form; use kl='closed'"):
        network(estimator, kl="sampled")(X, Y)


def test_points_pass_through():
    elbo = network(StraightThrough())
    model = elbo.model.narrow("*.weight")
    posterior = Posterior(
        model.posterior("discrete", model.values(), Start(levels=(-1.0, 1.0))).factors
    )
    nll, kl = Elbo(model, posterior, StraightThrough())(X, Y)
    (nll + kl).backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in posterior.parameters())
