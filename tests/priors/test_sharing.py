import pytest
import torch
from torch import nn
from torch.distributions import Cauchy, Normal

from credo.core.errors import CredoError, SettingError
from credo.core.sites import sites_of
from credo.priors import groupings
from credo.priors.base import state_name
from credo.priors.sharing import find, relevance, sizes

LAYERS = {
    "linear": nn.Linear(5, 6),
    "conv": nn.Conv2d(4, 6, 3),
    "grouped": nn.Conv1d(4, 6, 3, groups=2),
    "transposed": nn.ConvTranspose1d(4, 6, 3),
    "grouped_transposed": nn.ConvTranspose2d(4, 6, 3, groups=2),
    "norm": nn.BatchNorm1d(6),
    "embedding": nn.Embedding(7, 3),
}
SITES = sites_of(nn.ModuleDict(LAYERS))


@pytest.mark.parametrize("per", groupings.names())
@pytest.mark.parametrize("name", SITES)
def test_spread_and_collapse_are_adjoint(per, name):
    grouping, site = groupings[per], SITES[name]
    generator = torch.Generator().manual_seed(0)
    values, elements = (
        torch.randn(grouping.size(site), generator=generator),
        torch.randn(site.shape, generator=generator),
    )
    spread = grouping.to_elements(values, site)
    assert spread.shape in ((), site.shape)
    assert torch.allclose(
        (spread * elements).sum(), (values * grouping.collapse(elements, site)).sum(), atol=1e-4
    )


@pytest.mark.parametrize("name", ["linear", "conv", "grouped", "transposed", "grouped_transposed"])
def test_units_and_inputs_are_what_the_layer_computes_with(name):
    """A unit's value reaches only its own output channel, a feature's value only its own input
    channel.
    """
    layer, site = LAYERS[name], SITES[f"{name}.weight"]
    spatial = () if name == "linear" else (5,) * (len(site.shape) - 2)
    channels = 5 if name == "linear" else 4

    def outputs(grouping, i, x):
        only = torch.zeros(grouping.size(site))
        only[i] = 1.0
        state = {"weight": grouping.to_elements(only, site).contiguous(), "bias": torch.zeros(6)}
        return torch.func.functional_call(layer, state, (x,)).reshape(len(x), 6, -1).abs().sum(-1)

    assert groupings["unit"].size(site) == 6 == groupings["unit"].size(SITES[f"{name}.bias"])
    for i in range(6):
        assert (
            outputs(groupings["unit"], i, torch.ones(1, channels, *spatial))[0] > 0
        ).tolist() == [j == i for j in range(6)]
    assert groupings["input"].size(site) == channels
    each = (
        torch.eye(channels)
        .reshape(channels, channels, *[1] * len(spatial))
        .expand(-1, -1, *spatial)
    )
    for i in range(channels):
        assert (outputs(groupings["input"], i, each).sum(1) > 0).tolist() == [
            j == i for j in range(channels)
        ]


def test_who_shares():
    def keys(per):
        return {name: n for name, (n, _) in sizes(per, SITES).items()}

    assert (
        keys("global") == {"all": 1}
        and keys("layer") == dict.fromkeys(LAYERS, 1)
        and keys("tensor") == dict.fromkeys(SITES, 1)
    )
    assert (
        keys("unit")["linear.weight"] == 6
        and "linear.bias" not in keys("unit")
        and keys("unit")["norm.bias"] == 6
    )
    assert (
        keys("input")["linear.bias"] == 1
        and keys("input")["embedding.weight"] == 3
        and keys("unit")["embedding.weight"] == 7
    )
    assert keys("weight")["conv.weight"] == 216
    with pytest.raises(SettingError, match="Unknown grouping per= 'layers'. Did you mean 'layer'"):
        sizes("layers", SITES)


def test_a_number_is_one_group():
    site = sites_of(nn.ParameterDict({"temperature": nn.Parameter(torch.tensor(1.0))}))[
        "temperature"
    ]
    assert all(
        grouping.size(site) == 1 and grouping.to_elements(torch.ones(1), site).shape == ()
        for _, grouping in groupings.items()
    )


def test_names_of_vectors_are_different_for_different_keys():
    keys = ["a.b", "a~1b", "a~b", "", "values"]
    names = {state_name("scale", key) for key in keys}
    assert len(names) == len(keys) and not any("." in name for name in names)


def test_relevance_is_a_root_mean_square_per_feature():
    site = SITES["grouped.weight"]
    std = torch.rand(site.shape, generator=torch.Generator().manual_seed(0)) + 0.1
    ours = relevance(Normal(0.0, std), site, "weight")
    first = (
        std[:3, 0].square().mean().sqrt()
    )  # feature 0 feeds the three units of the first group, by column 0
    last = std[3:, 1].square().mean().sqrt()
    assert ours.shape == (4,) and torch.allclose(ours[[0, 3]], torch.stack([first, last]))
    with pytest.raises(
        SettingError, match="per='layer' gives input features no values of their own"
    ):
        relevance(Normal(0.0, std), site, "layer")
    with pytest.raises(CredoError, match=r"'linear.bias' of shape \(6,\) has no input features"):
        relevance(Normal(0.0, 1.0), SITES["linear.bias"], "input")
    with pytest.raises(CredoError, match="no finite standard deviation"):
        relevance(Cauchy(0.0, std), site, "weight")


def test_a_site_the_prior_was_not_made_for():
    with pytest.raises(
        CredoError, match=r"no hyperparameters for 'x'; it was made for no parameter yet: fresh"
    ):
        find("x", {}, "learned")
