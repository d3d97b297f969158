import pytest
import torch

from credo.core.sites import Site
from credo.priors import Prior, as_prior, is_proper, presets

SITE = Site("w", "", torch.Size((3, 4)), torch.float32, torch.device("cpu"), 4)


@pytest.mark.parametrize("name", presets.names())
def test_every_name_gives_a_prior_that_can_be_stored_and_scores_weights(name):
    prior = as_prior(name).fresh({"w": SITE})
    assert isinstance(prior, Prior) and prior.config() is not None
    log_prob = prior.at(SITE).log_prob(torch.full(SITE.shape, 0.3))
    assert log_prob.shape == SITE.shape and torch.isfinite(log_prob).all()


def test_only_two_of_them_are_improper():
    improper = {
        name
        for name in presets.names()
        if not is_proper(as_prior(name).fresh({"w": SITE}).at(SITE))
    }
    assert improper == {"flat", "log_uniform"}


def test_ard_has_a_value_per_input():
    assert as_prior("ard").fresh({"w": SITE}).relevance("w").shape == (4,)
    assert as_prior("normal").relevance("w") is None
    assert as_prior({"w": "ard", "*": "normal"}).fresh({"w": SITE}).relevance("w").shape == (4,)
