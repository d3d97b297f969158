import json
import math

import pytest
import torch
from torch import nn
from torch.distributions import Laplace, Normal

from credo.core.errors import SettingError
from credo.core.sites import sites_of
from credo.priors import Flat, Scaled, as_prior, from_config

NET = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2)).double()
SITES = sites_of(NET)
GROUPS = {
    "global": [["0.weight", "0.bias", "2.weight", "2.bias"]],
    "layer": [["0.weight", "0.bias"], ["2.weight", "2.bias"]],
    "tensor": [["0.weight"], ["0.bias"], ["2.weight"], ["2.bias"]],
}


def make(per="global", prior=None):
    return Scaled(as_prior(prior or Normal(0.5, 2.0)), per).fresh(SITES)


@pytest.mark.parametrize("per", GROUPS)
def test_groups_share_a_factor_that_starts_at_one(per):
    prior = make(per)
    assert prior.groups() == GROUPS[per]
    assert all(float(value) == 0 for value in prior.scales().values())
    assert all(float(prior.at(site).scale) == 2.0 for site in SITES.values())


@pytest.mark.parametrize("per", GROUPS)
def test_factors_are_on_the_precision(per):
    prior = make(per)
    values = [math.log(4.0 * (place + 1)) for place in range(len(GROUPS[per]))]
    prior.set(
        {
            name: torch.tensor(value)
            for group, value in zip(prior.groups(), values, strict=True)
            for name in group
        }
    )
    for group, value in zip(GROUPS[per], values, strict=True):
        for name in group:
            at = prior.at(SITES[name])
            assert (
                torch.allclose(at.scale.pow(-2), torch.tensor(math.exp(value) / 4).double())
                and float(at.loc) == 0.5
            )
            assert at.scale.dtype == torch.float64


def test_a_fit_starts_afresh_and_no_descent_moves_it():
    prior = make("layer")
    prior.set({"0.weight": torch.tensor(3.0)})
    assert all(float(value) == 0 for value in prior.fresh(SITES).scales().values())
    assert list(prior.parameters()) == [] and prior.parts() == [prior] and prior.penalty() is None


def test_patterns_inside_keep_their_own_widths():
    prior = make("global", {"*.weight": Normal(0.0, 2.0), "*": Normal(0.0, 1.0)})
    prior.set({"0.weight": torch.tensor(math.log(4.0)).double()})
    found = [float(prior.at(SITES[name]).scale) for name in ("0.weight", "0.bias")]
    assert found == pytest.approx([1.0, 0.5])
    assert prior.matches("0.bias") and not make().matches("0.bias")


def test_state_and_config_rebuild_it():
    prior = make("layer")
    prior.set({"0.weight": torch.tensor(0.7), "2.bias": torch.tensor(-0.3)})
    other = from_config(json.loads(json.dumps(prior.config()))).fresh(SITES)
    other.load_state_dict(prior.state_dict())
    assert all(torch.equal(prior.at(site).scale, other.at(site).scale) for site in SITES.values())
    assert prior.describe() == "Normal(loc: 0.5, scale: 2.0), precision tuned per layer"
    assert make().describe() == "Normal(loc: 0.5, scale: 2.0), precision tuned"
    assert (
        Scaled(as_prior(Normal(torch.zeros(6, 5), torch.ones(6, 5)))).config() is None
    )  # too long to be stored, and said so


def test_parameters_it_was_not_made_for_keep_their_prior():
    prior = Scaled(as_prior(Normal(0.0, 2.0))).fresh({"0.weight": SITES["0.weight"]})
    prior.set({"0.weight": torch.tensor(1.0)})
    assert float(prior.at(SITES["2.bias"]).scale) == 2.0


@pytest.mark.parametrize("spec", [Laplace(0.0, 1.0), Flat()])
def test_only_a_normal_has_a_width_to_tune(spec):
    with pytest.raises(
        SettingError,
        match="'0.weight' cannot be tuned: it is .*, not a normal; give a normal prior, or use "
        "tune='none'",
    ):
        make(prior=spec).at(SITES["0.weight"])


def test_wrong_groups_are_refused():
    with pytest.raises(SettingError, match="per='unit'; expected 'global', 'layer' or 'tensor'"):
        Scaled(as_prior(Normal(0.0, 1.0)), "unit")


def test_only_a_scaled_prior_has_a_width_to_set():
    prior = as_prior(Normal(0.0, 1.0))
    scaled = Scaled(prior)
    assert scaled.tunable is scaled and prior.tunable is None
