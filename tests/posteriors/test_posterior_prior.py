import pytest
import torch
from zoo.models import make_model, make_posterior
from zoo.networks import make

from credo.core.errors import CredoError
from credo.posteriors import PosteriorPrior


def earlier(kind):
    model = make_model(make("mlp")[0])
    return model, make_posterior(kind, model)


def test_independent_gaussians_are_taken_element_by_element():
    model, posterior = earlier("mean_field")
    prior, mean = PosteriorPrior(posterior), posterior.mean()
    for name, site in model.sites.items():
        assert torch.equal(prior.at(site).loc, mean[name])
    assert prior.joint_over(tuple(model.sites)) is None


def test_a_joint_density_is_taken_whole():
    model, posterior = earlier("full")
    prior = PosteriorPrior(posterior)
    assert prior.joint_over(posterior.names) is posterior.factors[0]
    with pytest.raises(CredoError, match="has no elementwise prior"):
        prior.at(next(iter(model.sites.values())))


def test_what_would_forget_is_refused():
    with pytest.raises(CredoError, match="a point estimate as prior would ignore the new data"):
        PosteriorPrior.after(earlier("delta")[1])
    _, posterior = earlier("mean_field")
    copied = PosteriorPrior.after(posterior).posterior
    assert copied is not posterior and torch.equal(
        copied.factors[0].flat_mean, posterior.factors[0].flat_mean
    )
