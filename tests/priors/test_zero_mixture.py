"""The mixture of soft weight sharing: its density, its components, and how values collapse onto
them.
"""

import math

import pytest
import torch
from scipy.integrate import quad
from torch.distributions import Gamma, Normal
from zoo.stats import has_mean, has_variance

from credo.core.errors import SettingError
from credo.core.seeds import isolated
from credo.core.sites import Site
from credo.priors import GaussianMixture, Learned
from credo.priors.base import from_config
from credo.priors.zero_mixture import OTHER_GAMMA, ZERO_GAMMA, ZeroMixture, shared_values

MIXTURE = ZeroMixture(
    0.7, *(torch.tensor(v).double() for v in ([0.3, -0.2], [-1.0, 0.5], [400.0, 100.0, 25.0]))
)
SITE = Site("w", "", torch.Size((3, 4)), torch.float64, torch.device("cpu"), 4)


def test_the_density_is_the_sum_of_its_components_and_integrates_to_one():
    pi = torch.softmax(torch.tensor([0.3, -0.2]).double(), 0) * 0.3
    x = torch.linspace(-2, 2, 9).double()
    parts = [0.7 * Normal(0.0, 0.05).log_prob(x).exp()] + [
        float(p) * Normal(m, s).log_prob(x).exp()
        for p, m, s in zip(pi, (-1.0, 0.5), (0.1, 0.2), strict=True)
    ]
    torch.testing.assert_close(MIXTURE.log_prob(x).exp(), sum(parts))
    mass = quad(
        lambda v: float(MIXTURE.log_prob(torch.tensor(v).double()).exp()),
        -3,
        3,
        points=[-1, 0, 0.5],
        limit=200,
    )[0]
    assert mass == pytest.approx(1.0, abs=1e-8)


def test_the_component_at_zero_is_first_and_keeps_its_share():
    assert isinstance(MIXTURE.mixture, GaussianMixture)
    assert MIXTURE.loc.tolist() == [0.0, -1.0, 0.5] and float(MIXTURE.weights[0]) == pytest.approx(
        0.7
    )
    assert float(MIXTURE.weights.sum()) == pytest.approx(1.0)
    torch.testing.assert_close(MIXTURE.scale, torch.tensor([0.05, 0.1, 0.2]).double())


def test_draws_have_its_mean_and_variance():
    with isolated(0):
        draws = MIXTURE.sample((20_000,))
    has_mean(draws, MIXTURE.mean)
    has_variance(draws, MIXTURE.variance)


def test_values_collapse_onto_the_most_responsible_mean_and_zeros_are_exact():
    values = torch.tensor([[0.01, -0.9], [0.4, -0.08]]).double()
    densities = [
        w * Normal(m, s).log_prob(values).exp()
        for w, m, s in zip(MIXTURE.weights, MIXTURE.loc, MIXTURE.scale, strict=True)
    ]
    assert torch.equal(MIXTURE.responsible(values), torch.stack(densities).argmax(0))
    assert MIXTURE.collapse(values).tolist() == [[0.0, -1.0], [0.5, 0.0]]
    far = torch.tensor([1e4, -1e4]).double()  # beyond every component the widest is responsible
    assert MIXTURE.collapse(far).tolist() == [0.5, 0.5]


def test_what_is_learned_and_what_is_not():
    prior = shared_values(3, 0.9, -1.0, 1.0).fresh({"w": SITE})
    assert isinstance(prior, Learned) and set(prior.learn) == {"logits", "free", "precision"}
    now = prior.at(SITE)
    assert (
        isinstance(now, ZeroMixture)
        and now.share == 0.9
        and now.loc.tolist() == [0.0, -1.0, 0.0, 1.0]
    )
    (-now.log_prob(torch.full((3, 4), 0.3).double()).sum()).backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in prior.parameters())


def test_the_penalty_is_that_of_the_gammas():
    prior = shared_values(2, 0.9, -1.0, 1.0).fresh({"w": SITE})
    ((precision,),) = [values["precision"] for values in prior.values().values()]
    zero, other = (
        Gamma(*(torch.tensor(v, dtype=torch.float64) for v in pair))
        for pair in (ZERO_GAMMA, OTHER_GAMMA)
    )
    exact = -zero.log_prob(precision[0]) - other.log_prob(precision[1:]).sum()
    assert float(prior.penalty().detach()) == pytest.approx(float(exact), rel=1e-9)


def test_a_component_on_top_of_a_weight_does_not_collapse():
    """The objective grows without bound without hyperpriors; with them it falls again as the
    precision grows.
    """
    prior = shared_values(1, 0.5, -1.0, 1.0).fresh({"w": SITE})
    raw = next(p for n, p in prior.named_parameters() if "precision" in n)
    costs = []
    for size in (math.log(2500.0), math.log(2.5e4), math.log(2.5e6)):
        with torch.no_grad():
            raw[0, 1] = size
        costs.append(
            float(
                (
                    prior.penalty() - prior.at(SITE).log_prob(torch.zeros(3, 4).double()).sum()
                ).detach()
            )
        )
    assert costs == sorted(costs)


def test_it_comes_back_from_a_run_file():
    prior = shared_values(3, 0.9, -1.0, 1.0, per="layer")
    again = from_config(prior.config())
    assert isinstance(again, Learned) and again.config() == prior.config()
    assert again.describe() == prior.describe()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((1.0, [0.0], [1.0], [1.0, 1.0]), "share=1.0 is not valid"),
        ((0.5, [0.0], [1.0], [1.0]), "expected .K,., .K,. and .K . 1,."),
        ((0.5, [0.0, 1.0], [1.0], [1.0, 1.0]), "have shapes"),
    ],
)
def test_arguments_that_do_not_fit(arguments, words):
    with pytest.raises(SettingError, match=words):
        ZeroMixture(*arguments)


def test_ranges_that_are_empty():
    with pytest.raises(SettingError, match="components=0"):
        shared_values(0, 0.5, -1.0, 1.0)
    with pytest.raises(SettingError, match="low=1, high=1"):
        shared_values(2, 0.5, 1.0, 1.0)
