import json

import pytest
import torch
from torch.distributions import Normal
from zoo.families import values
from zoo.models import make_model

from credo.core.errors import CredoError
from credo.posteriors import Posterior, Stochastic
from credo.priors import Factorised


def family():
    return Stochastic.of(values(), ["drop", "body.noise"])


def test_draws_are_points_but_counted_as_draws():
    """No atoms: predictions make as many passes as they are asked for, each noisy."""
    made = family()
    posterior = Posterior([made])
    assert made.atoms is None and posterior.numbers(5) == [0, 1, 2, 3, 4]
    assert (
        made.noisy_modules == {"drop", "body.noise"} == posterior.noisy_modules
        and made.fixed == {"w", "b"} == posterior.fixed
    )
    draws = posterior.sample(3)
    assert all(torch.equal(draws[n], v.expand(3, *v.shape)) for n, v in values().items())


def test_its_kl_is_that_of_a_point():
    made, prior = family(), {n: Normal(0.0, 2.0) for n in ("w", "b")}
    expected = -sum(Normal(0.0, 2.0).log_prob(v).sum() for v in values().values())
    assert (
        torch.allclose(made.kl(Factorised(prior, made.shapes)), expected) and not made.kl_is_bound
    )


def test_it_has_no_density():
    for ask in (family().log_prob, Posterior([family()]).log_prob):
        with pytest.raises(
            CredoError, match="A stochastic forward pass has no density over weights"
        ):
            ask(values())


def test_config_rebuilds_it():
    made = family()
    other = Posterior.from_config(json.loads(json.dumps(Posterior([made]).config())))
    other.load_state_dict(Posterior([made]).state_dict())
    assert isinstance(other.factors[0], Stochastic) and other.noisy_modules == made.noisy_modules
    assert all(torch.equal(other.mean()[n], v) for n, v in values().items())


def test_the_values_are_copies():
    net = torch.nn.Linear(2, 1)
    made = Stochastic.of(make_model(net).values(), [""])
    with torch.no_grad():
        made.values[0].add_(1.0)
    assert not torch.equal(made.mean()["weight"], net.weight)
