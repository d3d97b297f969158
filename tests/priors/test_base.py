import json

import pytest
import torch
from scipy import stats
from torch import nn
from torch.distributions import (
    Categorical,
    Gamma,
    Laplace,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
    StudentT,
)

from credo import priors
from credo.core.errors import CredoError, SettingError
from credo.core.sites import sites_of
from credo.priors import (
    ByPattern,
    FanIn,
    Fixed,
    Flat,
    Learned,
    Optimal,
    ScaleMixture,
    Unstored,
    as_prior,
    default_prior,
    from_config,
    horseshoe,
    learned_mixture,
    log_uniform,
    scale_mixture,
    spike_and_slab,
)
from credo.priors.base import distribution_on

SITES = sites_of(nn.Sequential(nn.Linear(5, 6), nn.Linear(6, 2)).double())
GRID = torch.linspace(-4, 4, 41, dtype=torch.float64)


@pytest.mark.parametrize(
    ("distribution", "reference"),
    [
        (Normal(0.25, 1.5), stats.norm(0.25, 1.5)),
        (Laplace(-0.5, 0.75), stats.laplace(-0.5, 0.75)),
        (StudentT(3.0, 0.5, 2.0), stats.t(3, 0.5, 2)),
    ],
)
def test_densities_against_scipy_in_double_precision(distribution, reference):
    at = as_prior(distribution).at(SITES["0.weight"])
    assert at.log_prob(GRID).dtype == torch.float64
    assert torch.allclose(
        at.log_prob(GRID), torch.from_numpy(reference.logpdf(GRID.numpy())), rtol=1e-12
    )


def test_the_same_distribution_everywhere():
    prior = as_prior(Normal(0.0, 2.0))
    assert isinstance(prior, Fixed) and all(prior.at(site).scale == 2.0 for site in SITES.values())
    assert "Normal" in prior.describe()


def test_patterns_take_the_first_match():
    prior = as_prior({"0.*": Laplace(0.0, 1.0), "*.bias": Normal(0.0, 3.0), "*": FanIn(1.0)})
    assert isinstance(prior.at(SITES["0.bias"]), Laplace) and prior.at(SITES["1.bias"]).scale == 3.0
    assert torch.allclose(prior.at(SITES["1.weight"]).scale, torch.tensor(6.0).double() ** -0.5)
    assert prior.matches("0.x") and "0.*: Laplace" in prior.describe()
    lone = ByPattern({"0.*": Normal(0.0, 1.0)})
    assert not lone.matches("1.bias")
    with pytest.raises(
        SettingError, match=r"No prior pattern matches '1\.bias'.*Add '\*' to cover the rest"
    ):
        lone.at(SITES["1.bias"])


def test_what_is_no_prior():
    with pytest.raises(SettingError, match=r"must be elementwise.*event shape \(2,\)"):
        as_prior(MultivariateNormal(torch.zeros(2), torch.eye(2)))
    with pytest.raises(SettingError, match=r"Unknown prior 'norma'\. Did you mean 'normal'\?"):
        as_prior("norma")
    with pytest.raises(SettingError, match="prior=3"):
        as_prior({"*": 3})


@pytest.mark.parametrize(
    "spec",
    [
        Normal(0.5, 2.0),
        Laplace(0.0, 0.3),
        StudentT(4.0, 0.0, 1.0),
        Flat(),
        FanIn(0.7),
        scale_mixture(0.25, 1.0, 0.1),
        spike_and_slab(),
        horseshoe(0.3),
        log_uniform(),
        ScaleMixture("inverse_gamma", 0.5, df=3.0),
        Learned(Normal(0.0, 0.3), ["scale"], "layer", {"scale": Gamma(2.0, 1.0)}),
        learned_mixture(3),
        Optimal("layer", centred=True),
        {"0.*": Laplace(0.0, 1.0), "*": {"*.bias": Flat(), "*": FanIn()}},
    ],
    ids=str,
)
def test_configs_rebuild_the_prior(spec):
    prior = as_prior(spec)
    other = from_config(json.loads(json.dumps(prior.config())))
    assert other.config() == prior.config() and other.describe() == prior.describe()
    for site in SITES.values():
        assert torch.equal(prior.at(site).log_prob(GRID), other.at(site).log_prob(GRID))


def test_what_has_no_stored_form_has_no_config():
    mixture = MixtureSameFamily(Categorical(torch.ones(2)), Normal(torch.zeros(2), torch.ones(2)))
    assert as_prior(mixture).config() is None and as_prior({"*": mixture}).config() is None
    assert as_prior(Normal(torch.zeros(2, 2), torch.ones(2, 2))).config() is None
    assert Learned(Normal(0.0, 1.0), hyperprior={"loc": mixture}).config() is None
    with pytest.raises(CredoError, match="Unstored has no stored form"):
        Unstored.from_config({})
    with pytest.raises(SettingError, match="Unknown prior 'fix'. Did you mean 'fixed'"):
        from_config({"name": "fix"})


def test_a_fixed_prior_has_nothing_to_learn():
    for prior in (as_prior(Normal(0.0, 1.0)), FanIn(), as_prior({"*": Flat()})):
        assert prior.parts() == [] and prior.penalty() is None
        prior.observe({}, {})
    assert FanIn().fresh(SITES) == FanIn()


def test_patterns_pass_each_prior_its_first_matches():
    hyper = {"scale": Gamma(2.0, 1.0)}
    prior = as_prior(
        {
            "0.*": Optimal("tensor"),
            "*.bias": Normal(0.0, 3.0),
            "*": Learned(Normal(0.0, 0.5), ["scale"], "tensor", hyper),
        }
    )
    assert prior.penalty() is None  # no group exists before fresh
    fresh = prior.fresh(SITES)
    optimal, learned = fresh.parts()
    assert list(optimal.values()) == ["0.weight", "0.bias"] and list(learned.values()) == [
        "1.weight"
    ]
    assert torch.allclose(fresh.penalty(), -Gamma(2.0, 1.0).log_prob(torch.tensor(0.5)).double())
    fresh.observe(
        {n: torch.full(s.shape, 2.0).double() for n, s in SITES.items()},
        {n: torch.ones(s.shape) for n, s in SITES.items()},
    )
    assert fresh.at(SITES["0.bias"]).loc == 2.0 and fresh.at(SITES["1.bias"]).scale == 3.0
    both = as_prior(
        {
            "0.*": Learned(Normal(0.0, 0.5), ["scale"], hyperprior=hyper),
            "*": Learned(Normal(0.0, 0.5), hyperprior=hyper),
        }
    )
    assert torch.allclose(both.fresh(SITES).penalty(), 2 * fresh.penalty())


def test_a_prior_that_could_not_be_stored_says_so_when_it_is_needed():
    prior = Unstored("two Gaussians")
    assert prior.describe() == "two Gaussians" and prior.config() is None
    with pytest.raises(
        CredoError, match=r"\(two Gaussians\) could not be stored with it; give it again"
    ):
        prior.at(SITES["0.bias"])


def test_the_default_is_proper():
    assert default_prior().config() == as_prior(Normal(0.0, 1.0)).config() and set(
        priors.__all__
    ) >= {"Normal", "Laplace", "StudentT", "FanIn", "Flat"}


def test_a_priors_own_validation_is_off():
    """It reads back from the device at every step, and raises its own error where the loop has a
    better one.
    """
    for spec in (
        Normal(0.0, 1.0),
        StudentT(3.0),
        scale_mixture(),
        horseshoe(),
        Learned(Normal(0.0, 1.0)),
    ):
        assert (
            as_prior(spec)
            .at(SITES["0.weight"])
            .log_prob(torch.tensor(float("nan")).double())
            .isnan()
        )


def test_moving_a_distribution_leaves_the_original():
    mixture = scale_mixture()
    moved = distribution_on(mixture, torch.float64, torch.device("cpu"))
    assert moved.log_prob(GRID).dtype == torch.float64 and mixture.loc.dtype == torch.float32


def test_only_the_optimal_prior_needs_marginals_also_within_a_table():
    for prior in (Normal(0.0, 1.0), Learned(Normal(0.0, 1.0)), {"*": Normal(0.0, 1.0)}):
        assert not as_prior(prior).fresh(SITES).needs_marginals()
    for prior in (Optimal(), {"0.*": Optimal("tensor"), "*": Normal(0.0, 1.0)}):
        assert as_prior(prior).fresh(SITES).needs_marginals()


def test_elementwise_priors_have_no_joint_density_of_their_own():
    assert as_prior(Normal(0.0, 1.0)).joint_log_prob(list(SITES)) is None
