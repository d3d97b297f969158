import pytest
import torch
from torch.distributions import StudentT
from zoo.gradients import gradients, joined, quadrature
from zoo.models import make_model, make_posterior
from zoo.networks import make
from zoo.stats import has_mean, same_mean

from credo.core.errors import SettingError
from credo.core.seeds import isolated
from credo.engine.elbo import Elbo
from credo.estimators import Pass, Weights, estimators
from credo.likelihoods import Gaussian


def test_the_registry_knows_every_estimator_by_its_own_name():
    assert set(estimators) == {
        "weights",
        "local",
        "flipout",
        "per_example",
        "score",
        "straight_through",
        "gumbel",
        "moments",
        "reinforce",
        "arm",
    }
    assert all(estimators[name].name == name for name in estimators)


def test_an_unknown_name_gets_the_nearest():
    with pytest.raises(
        SettingError, match=r"Unknown estimator 'flip_out'\. Did you mean 'flipout'\?"
    ):
        estimators["flip_out"]


def test_passes_are_averaged():
    passes = [
        Pass(torch.tensor(a), torch.tensor(b), [], torch.tensor([a]))
        for a, b in ((1.0, 4.0), (3.0, 8.0))
    ]
    assert [float(v) for v in Weights().combine(passes, None, 5)] == [2.0, 6.0]
    assert [float(v) for v in Weights().combine(passes[:1], None, 5)] == [1.0, 4.0]


def one_weight(kl, prior=None, estimator="weights", likelihood="poisson"):
    with isolated(0):
        net = torch.nn.Linear(1, 1).double()
    model = make_model(net, likelihood=likelihood, prior=prior)
    return Elbo(model, make_posterior("mean_field", model, 0.3), estimators[estimator], kl=kl)


X = torch.linspace(-1, 1, 6, dtype=torch.float64).unsqueeze(1)
Y = torch.tensor([0.0, 1.0, 1.0, 3.0, 2.0, 4.0], dtype=torch.float64)


def test_the_gradient_with_a_sampled_kl_is_that_with_the_closed_one():
    """Against quadrature of the data term plus the closed KL."""
    elbo = one_weight("sampled")
    exact = torch.autograd.grad(quadrature(elbo, X, Y), list(elbo.posterior.parameters()))
    has_mean(joined(gradients(elbo, X, Y, 20_000)), torch.cat([g.flatten() for g in exact]))


@pytest.mark.parametrize("kl", ["closed", "sampled"])
def test_a_sampled_kl_is_of_the_very_draw_the_network_saw(kl):
    """With kl="closed" too, where the prior has no closed form."""
    elbo = one_weight(kl, StudentT(3.0))
    shell = elbo.model.shell()
    with isolated(1):
        nll, part = elbo(X, Y)
    placed = {n: shell.placed(n) for n in elbo.model.random}
    family, prior = elbo.posterior.factors[0], elbo.terms(0).priors[0]
    assert torch.allclose(part, family.log_prob(placed) - prior.log_prob(placed))
    outputs = torch.func.functional_call(elbo.model.net, placed, X)
    assert torch.allclose(nll, -elbo.likelihood.log_prob(outputs, Y).sum())


@pytest.mark.parametrize("estimator", ["local", "flipout", "per_example"])
def test_estimators_without_a_joint_draw_sample_the_kl_by_itself(estimator):
    """Where linear maps meet the family there is no draw of the weights to reuse; the mean is right
    all the same.
    """
    net, x = make("mlp")
    model = make_model(net, likelihood=Gaussian(std=0.5))
    posterior = make_posterior("mean_field", model)
    y = torch.zeros(3, 2).double()
    values = []
    for kl in ("closed", "sampled"):
        elbo = Elbo(model, posterior, estimators[estimator], kl=kl)
        with torch.no_grad(), isolated(0):
            values.append(torch.stack([elbo(x, y)[1] for _ in range(800)]))
    assert float(values[0].std()) < 1e-9 < float(values[1].std())
    same_mean(values[0], values[1])


def test_the_nll_is_told_example_by_example():
    """What gradients through masks of an example's own need; passes carry it beside its sum."""
    net, x = make("mlp")
    likelihood, y = Gaussian(std=0.5), torch.zeros(3, 2).double()
    each = Weights().nll(likelihood, net(x), y)
    expected = -torch.distributions.Normal(net(x), 0.5).log_prob(y).sum(-1)
    assert each.shape == (3,) and torch.allclose(each, expected)
    model = make_model(net, likelihood=likelihood)
    elbo = Elbo(model, make_posterior("delta", model), Weights())
    seen = []
    elbo.estimator = type(
        "Spy",
        (Weights,),
        {
            "combine": lambda self, passes, *rest: (
                seen.extend(passes) or super(Weights, self).combine(passes, *rest)
            )
        },
    )()
    nll, _ = elbo(x, y)
    assert torch.allclose(seen[0].each, expected) and torch.allclose(nll, expected.sum())
