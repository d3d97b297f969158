import pytest
import torch
from torch.distributions import Laplace, MultivariateNormal, Normal
from zoo.models import make_model
from zoo.networks import make

from credo.core.errors import SettingError
from credo.priors import ByPattern, Fixed, as_prior, from_config


def test_the_first_pattern_that_matches_counts():
    sites = make_model(make("mlp")[0]).sites
    prior = as_prior({"*.bias": Laplace(0.0, 2.0), "*": Normal(0.0, 3.0)})
    assert isinstance(prior, ByPattern)
    for name, site in sites.items():
        assert float(prior.at(site).scale) == (2.0 if name.endswith("bias") else 3.0)
    again = from_config(prior.config())
    assert again.describe() == prior.describe()


def test_a_parameter_without_a_pattern_is_named():
    sites = make_model(make("mlp")[0]).sites
    prior = as_prior({"nothing": Normal(0.0, 1.0)})
    with pytest.raises(SettingError, match="No prior pattern matches"):
        prior.at(next(iter(sites.values())))


def test_what_a_prior_can_be_given_as():
    assert isinstance(as_prior(Normal(0.0, 1.0)), Fixed) and isinstance(as_prior("laplace"), Fixed)
    with pytest.raises(SettingError, match="must be elementwise"):
        as_prior(MultivariateNormal(torch.zeros(2), torch.eye(2)))
    with pytest.raises(SettingError, match="expected a torch distribution"):
        as_prior(3)
