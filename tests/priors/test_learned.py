import json
import math
import pickle

import pytest
import torch
from torch import nn
from torch.distributions import (
    Beta,
    Gamma,
    Laplace,
    LogNormal,
    MultivariateNormal,
    Normal,
    StudentT,
    Uniform,
    constraints,
    kl_divergence,
)

from credo.core.errors import CredoError, SettingError
from credo.core.sites import sites_of
from credo.priors import (
    Flat,
    GaussianMixture,
    Learned,
    ScaleMixture,
    from_config,
    groupings,
    horseshoe,
    learned_mixture,
)

NET = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.ConvTranspose1d(4, 6, 3, groups=2)).double()
SITES = sites_of(NET)
ELEMENTWISE = [
    Normal(0.1, 0.5),
    Laplace(0.1, 0.5),
    StudentT(3.0, 0.1, 0.5),
    horseshoe(0.5),
    ScaleMixture("inverse_gamma", 0.5, df=3.0),
]


@pytest.mark.parametrize("distribution", ELEMENTWISE, ids=str)
@pytest.mark.parametrize("per", groupings.names())
def test_it_starts_at_what_is_given_and_every_value_gets_a_gradient(distribution, per):
    prior = Learned(distribution, per=per).fresh(SITES)
    total = torch.zeros(()).double()
    for site in SITES.values():
        at, value = prior.at(site), torch.full(site.shape, 0.3).double()
        assert at.batch_shape in ((), site.shape) and not at._validate_args
        log_prob = at.log_prob(value)
        assert log_prob.dtype == torch.float64
        assert torch.allclose(
            log_prob, distribution.log_prob(torch.tensor(0.3)).double(), rtol=1e-5
        )  # the start is a float
        total = total + log_prob.sum()
    total.backward()
    assert all(torch.isfinite(p.grad).all() and p.grad.ne(0).all() for p in prior.parameters())
    assert prior.parts() == [prior] and prior.penalty() is None


def test_only_what_is_named_is_learned():
    prior = Learned(Normal(0.0, 0.5), ["scale"], "layer").fresh(SITES)
    assert prior.learn == ("scale",) and {k: list(v) for k, v in prior.values().items()} == {
        "0": ["scale"],
        "2": ["scale"],
    }
    with torch.no_grad():
        prior.get_parameter("scale@0").fill_(math.log(2.0))
    assert (
        torch.allclose(prior.at(SITES["0.bias"]).scale, torch.tensor(2.0).double())
        and prior.at(SITES["0.bias"]).loc == 0
    )
    assert torch.allclose(prior.learned("2.weight")["scale"], torch.tensor(0.5).double())
    assert Learned(Normal(0.0, 0.5), "scale").learn == ("scale",)


def test_values_stay_within_their_limits():
    prior = Learned(Normal(0.0, 1.0)).fresh(SITES)
    with torch.no_grad():
        for parameter in prior.parameters():
            parameter.fill_(-20.0)
    assert prior.values()["all"]["scale"] > 0 and prior.values()["all"]["loc"] == -20


def test_training_reaches_the_optimal_prior():
    """Minimising KL[q, p] over p's arguments ends at the average of mu and the average of sigma^2 +
    (mu - mean)^2.
    """
    generator = torch.Generator().manual_seed(0)
    mean, std = (torch.rand(6, 5, generator=generator, dtype=torch.float64) + 0.1 for _ in range(2))
    site, q = SITES["0.weight"], Normal(mean, std)
    prior = Learned(Normal(0.0, 1.0)).fresh({site.name: site})
    optimiser = torch.optim.LBFGS(
        prior.parameters(), max_iter=200, tolerance_grad=1e-12, line_search_fn="strong_wolfe"
    )

    def closure():
        optimiser.zero_grad()
        kl = kl_divergence(q, prior.at(site)).sum()
        kl.backward()
        return kl

    optimiser.step(closure)
    at = prior.at(site)
    assert torch.allclose(at.loc, mean.mean(), rtol=1e-4)
    assert torch.allclose(at.scale**2, (std**2 + (mean - mean.mean()) ** 2).mean(), rtol=1e-4)


def test_the_hyperprior_is_a_density_of_the_value():
    hyper = {"scale": Gamma(2.0, 3.0), "loc": Normal(0.0, 2.0)}
    prior = Learned(Normal(0.1, 0.5), per="unit", hyperprior=hyper).fresh(SITES)
    one = hyper["scale"].log_prob(torch.tensor(0.5)) + hyper["loc"].log_prob(torch.tensor(0.1))
    assert torch.allclose(
        prior.penalty(), -12 * one.double()
    )  # six units in each of two layers, shared with their biases
    prior.penalty().backward()
    assert all(p.grad is not None for p in prior.parameters())


def test_mixtures():
    prior = learned_mixture(5, spread=2.0, per="layer", hyperprior={"scale": LogNormal(0.0, 1.0)})
    assert (
        prior.distribution.loc.tolist() == [-2, -1, 0, 1, 2]
        and prior.distribution.scale.tolist() == [0.5] * 5
    )
    assert learned_mixture(1).distribution.loc.tolist() == [0.0] and learned_mixture(
        1, scale=0.2
    ).distribution.scale.item() == pytest.approx(0.2)
    fresh = prior.fresh(SITES)
    at = fresh.at(SITES["2.weight"])
    assert isinstance(at, GaussianMixture) and at.log_prob(
        torch.zeros(SITES["2.weight"].shape).double()
    ).shape == (4, 3, 3)
    assert torch.allclose(
        fresh.penalty(), -10 * LogNormal(0.0, 1.0).log_prob(torch.tensor(0.5)).double()
    )
    at.log_prob(torch.tensor([0.3, 1.0]).double()).sum().backward()
    assert (
        fresh.get_parameter("loc@2").grad.abs().min() > 0
        and fresh.get_parameter("loc@0").grad is None
    )
    with pytest.raises(
        SettingError,
        match="per='unit' does not go with GaussianMixture, whose argument 'logits' is a vector",
    ):
        learned_mixture(per="unit")
    with pytest.raises(SettingError, match="components=0 is not valid"):
        learned_mixture(0)


@pytest.mark.parametrize(
    "spec",
    [
        Learned(Laplace(0.0, 0.5), per="unit"),
        learned_mixture(3, per="tensor"),
        Learned(horseshoe()),
    ],
)
def test_structure_and_state_give_back_the_fitted_prior(spec):
    fitted = spec.fresh(SITES)
    with torch.no_grad():
        for parameter in fitted.parameters():
            parameter.add_(torch.randn_like(parameter))
    again = from_config(json.loads(json.dumps(fitted.config()))).fresh(SITES)
    x = torch.tensor(0.4).double()
    assert not torch.allclose(
        again.at(SITES["0.bias"]).log_prob(x), fitted.at(SITES["0.bias"]).log_prob(x)
    )
    again.load_state_dict(fitted.state_dict())
    for site in SITES.values():
        assert torch.equal(again.at(site).log_prob(x), fitted.at(site).log_prob(x))
    restart = fitted.fresh(SITES)
    assert torch.equal(
        restart.at(SITES["0.bias"]).log_prob(x), spec.fresh(SITES).at(SITES["0.bias"]).log_prob(x)
    )
    assert pickle.loads(pickle.dumps(fitted)).values().keys() == fitted.values().keys()


def test_before_and_outside_a_fit():
    prior = Learned(Normal(0.0, 0.5))
    assert prior.at(SITES["0.bias"]).scale == 0.5 and prior.values() == {}
    with pytest.raises(
        CredoError, match=r"no hyperparameters for '2.bias'; it was made for 0.weight"
    ):
        prior.fresh({"0.weight": SITES["0.weight"]}).at(SITES["2.bias"])


def test_relevance():
    prior = Learned(Normal(0.0, 1.0), ["scale"], "input").fresh(SITES)
    with torch.no_grad():
        prior.get_parameter(next(n for n, _ in prior.named_parameters() if "0~1weight" in n))[2] = (
            math.log(0.01)
        )
    relevance = prior.relevance("0.weight")
    assert (
        torch.allclose(relevance, torch.tensor([1, 1, 0.01, 1, 1]).double())
        and not relevance.requires_grad
    )


def test_layers_may_have_any_name():
    sites = sites_of(nn.ModuleDict({"values_": nn.Linear(1, 1), "type~1": nn.Linear(1, 1)}))
    for per in groupings.names():
        assert set(
            Learned(Normal(0.0, 1.0), per=per)
            .fresh(sites)
            .at(sites["type~1.bias"])
            .scale.reshape(-1)
            .tolist()
        ) == {1.0}
    assert Learned(Normal(0.0, 1.0), per="layer").fresh(
        sites_of(nn.Linear(2, 2))
    ).values().keys() == {""}


def test_bad_settings_are_named():
    with pytest.raises(
        SettingError, match="learn='std': Normal has no such argument.*Known: loc, scale"
    ):
        Learned(Normal(0.0, 1.0), ["std"])
    with pytest.raises(SettingError, match="has no argument to learn"):
        Learned(Flat())
    with pytest.raises(SettingError, match="has no argument to learn"):
        Learned(Normal(0.0, 1.0), [])
    with pytest.raises(
        SettingError, match=r"argument 'loc' has shape \(2,\); expected a single number"
    ):
        Learned(Normal(torch.zeros(2), torch.ones(2)))
    with pytest.raises(SettingError, match="hyperprior for 'loc', which is not learned"):
        Learned(Normal(0.0, 1.0), ["scale"], hyperprior={"loc": Beta(1.0, 1.0)})
    with pytest.raises(SettingError, match="Uniform.* lives on .*a weight may be any real number"):
        Learned(Uniform(-1.0, 1.0))

    class Whole(Normal):
        arg_constraints = {"loc": constraints.integer_interval(0, 3), "scale": constraints.positive}

    with pytest.raises(
        SettingError, match="learn='loc': torch knows no unconstrained form of Whole's 'loc'"
    ):
        Learned(Whole(0.0, 1.0))
    with pytest.raises(SettingError, match=r"must be elementwise.*event shape \(2,\)"):
        Learned(MultivariateNormal(torch.zeros(2), torch.eye(2)))
    assert Learned(Normal(0.0, 1.0), ["scale"], "unit", {"scale": Gamma(2.0, 1.0)}).describe() == (
        "learned scale per unit from Normal(loc: 0.0, scale: 1.0), scale ~ Gamma(concentration: "
        "2.0, rate: 1.0)"
    )
