import pytest
import torch
from torch.distributions import Normal
from zoo.classification import QUICK, classes, classifier
from zoo.models import make_model, make_posterior
from zoo.networks import make
from zoo.stats import Z

from credo import BNN
from credo.core.errors import SettingError
from credo.core.seeds import Streams, isolated
from credo.engine.elbo import Elbo
from credo.engine.objective import divergence
from credo.estimators import estimators
from credo.likelihoods import Gaussian
from credo.posteriors import Mixture, Posterior
from credo.priors import Learned


def fitted(**how):
    x, y = classes()
    return (
        BNN(classifier(), "categorical").fit(
            (x, y), "bnn_ensemble", num_members=3, **(QUICK | how)
        ),
        x,
        y,
    )


def test_members_start_and_end_apart_and_all_predict():
    bnn, x, _ = fitted()
    parts = bnn.posterior.components()
    means = torch.stack([p.mean()["0.weight"] for p in parts])
    assert (
        len(parts) == 3
        and (means[0] - means[1]).abs().max() > 0.1
        and (means[1] - means[2]).abs().max() > 0.1
    )
    draws = bnn.posterior.sample(300)["0.weight"]
    nearest = (draws.unsqueeze(1) - means).flatten(2).norm(dim=-1).argmin(1)
    counts = torch.bincount(nearest, minlength=3).double()
    # a third each: five standard deviations of a binomial count
    assert ((counts - 100).abs() < Z * (300 * 2 / 9) ** 0.5).all()
    assert bnn.predict(x, 6).probs.shape == (6, 60, 3)


def mixture_elbo():
    net, x = make("mlp")
    model = make_model(net, likelihood=Gaussian(std=0.5))
    parts = [make_posterior("mean_field", model, seed=s) for s in (0, 1)]
    return (
        Elbo(model, Posterior([Mixture.of(parts)]), estimators["weights"]),
        [Elbo(model, part, estimators["weights"]) for part in parts],
        x,
    )


def test_the_objective_is_the_mean_of_the_members_elbos():
    whole, singles, x = mixture_elbo()
    y = torch.zeros(3, 2).double()
    with isolated(0):
        nll, kl = whole(x, y)
    with isolated(0):
        pairs = [single(x, y) for single in singles]
    assert torch.allclose(nll, sum(n for n, _ in pairs) / 2) and torch.allclose(
        kl, sum(k for _, k in pairs) / 2
    )
    whole.kl_kind = "optimizer"  # as for an optimizer that knows the prior by itself
    assert torch.allclose(whole.divergence(), kl)


def test_the_mixtures_own_kl_is_below_the_mean_of_its_members():
    """KL is convex in q; here by up to log 2, and by all of it where the members are far apart."""
    whole, singles, _ = mixture_elbo()
    family = whole.posterior.factors[0]
    values = divergence(family, whole.model.prior_over(family), 2000, 0).detach()
    mean = sum(s.posterior.factors[0].kl(s.terms(0).priors[0]) for s in singles).detach() / 2
    error = Z * values.std() / 2000**0.5
    assert mean - torch.log(torch.tensor(2.0)) - error < values.mean() < mean + error


def test_objective_reports_the_mixtures_kl_with_its_error():
    bnn, x, y = fitted()
    parts = bnn.objective((x, y), samples=50)
    values = divergence(
        bnn.posterior.factors[0], bnn.model.prior_over(bnn.posterior.factors[0]), 50, 0
    )
    assert parts["kl"] == pytest.approx(float(values.mean())) and parts["error"] > 0
    assert parts["bits_sent"] - parts["bits_back"] == pytest.approx(parts["bits_weights"])
    assert bnn.log_weights((x, y), 20).shape == (20,)


def test_a_learned_prior_is_refused():
    x, y = classes()
    with pytest.raises(SettingError, match="mixture of posteriors cannot share a learned prior"):
        BNN(classifier(), "categorical", Learned(Normal(0.0, 1.0))).fit(
            (x, y), "bnn_ensemble", **QUICK
        )


def test_the_moments_shortcut_is_refused():
    bnn, x, _ = fitted()
    from credo.core.errors import CredoError

    with pytest.raises(
        CredoError, match="Moments need a Gaussian posterior .*; this one is 'mixture'"
    ):
        bnn.predict(x, shortcut="moments")


def test_draws_of_a_seed_repeat():
    bnn, _, _ = fitted()
    family = bnn.posterior.factors[0]
    a, b = family.draw(Streams(0, range(4))), family.draw(Streams(0, range(4)))
    assert all(torch.equal(a[n], b[n]) for n in a)


def test_after_an_update_the_members_still_differ():
    """The mean of several modes is no place to start any of them from."""
    x, y = classes()
    fitted = BNN(classifier()).fit((x, y), "bnn_ensemble", num_members=2, **QUICK)
    fitted.update(
        (x, y), epochs=1, lr=1e-6, progress=False
    )  # hardly a step away from where they start
    first, second = (part.mean() for part in fitted.posterior.components())
    assert any(not torch.allclose(first[n], second[n], atol=0.01) for n in first)
