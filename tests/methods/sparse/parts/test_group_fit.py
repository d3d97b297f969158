"""Which weights form groups, for every kind of layer, and the model that group-sparse methods
see.
"""

import pytest
import torch
from torch import nn
from zoo.models import make_model

from credo import BNN
from credo.core.errors import SettingError
from credo.core.seeds import isolated
from credo.core.sites import sites_of
from credo.methods import methods
from credo.methods.sparse.parts.group_fit import places_of, side_of, unit_places
from credo.posteriors import GroupScale, Place
from credo.priors.group_prior import GroupPrior


class Everything(nn.Module):
    """One layer of each kind, and a parameter of nobody's."""

    def __init__(self):
        super().__init__()
        self.words, self.conv, self.norm = (
            nn.Embedding(7, 4),
            nn.Conv1d(4, 6, 2, groups=2),
            nn.BatchNorm1d(6),
        )
        self.up, self.rnn, self.cell = (
            nn.ConvTranspose1d(6, 4, 2, groups=2),
            nn.LSTM(4, 3, 2, batch_first=True),
            nn.GRUCell(3, 5),
        )
        self.attention, self.head, self.own = (
            nn.MultiheadAttention(4, 2),
            nn.Linear(5, 2),
            nn.Parameter(torch.randn(3, 4)),
        )


SITES = sites_of(Everything())
AUTO = {
    "words.weight": ("input", 0, 1),
    "conv.weight": ("output", 0, 2),
    "up.weight": ("output", 1, 2),
    "rnn.weight_ih_l0": ("output", 0, 1),
    "rnn.weight_hh_l0": ("output", 0, 1),
    "rnn.weight_ih_l1": ("output", 0, 1),
    "rnn.weight_hh_l1": ("output", 0, 1),
    "cell.weight_ih": ("output", 0, 1),
    "cell.weight_hh": ("output", 0, 1),
    "attention.in_proj_weight": ("output", 0, 1),
    "attention.out_proj.weight": ("input", 1, 1),
    "head.weight": ("input", 1, 1),
}


def test_the_groups_that_suit_each_layer():
    places = places_of(SITES, "auto")
    assert {n: (p.side, p.axis, p.groups) for n, p in places.items()} == AUTO
    assert all(place.bank == name for name, place in places.items())
    assert "own" not in places, "what its axes mean is not known"


@pytest.mark.parametrize(("groups", "count"), [("input", [7, 4, 6, 4]), ("output", [4, 6, 4, 12])])
def test_the_groups_that_are_asked_for(groups, count):
    places = places_of(SITES, groups)
    names = ("words.weight", "conv.weight", "up.weight", "rnn.weight_ih_l0")
    assert [places[n].count(SITES[n].shape) for n in names] == count
    assert all(side_of(site, groups) == groups for site in SITES.values())


def test_units_share_their_scale_with_biases_and_recurrent_weights():
    places = unit_places(SITES)
    assert (
        places["head.bias"] == Place("head.weight", 0, 1, "output")
        and places["up.bias"].bank == "up.weight"
    )
    layer = {n for n, p in places.items() if p.bank == "rnn.weight_ih_l1"}
    assert layer == {"rnn.weight_ih_l1", "rnn.weight_hh_l1", "rnn.bias_ih_l1", "rnn.bias_hh_l1"}
    assert {n for n, p in places.items() if p.bank == "cell.weight_ih"} == {
        "cell.weight_ih",
        "cell.weight_hh",
        "cell.bias_ih",
        "cell.bias_hh",
    }
    assert not {"norm.weight", "norm.bias", "own"} & places.keys()
    assert places["words.weight"] == Place("words.weight", 1, 1, "output"), (
        "the units of an embedding are its dimensions"
    )


METHODS = ("group_normal_jeffreys", "group_horseshoe", "horseshoe")


@pytest.mark.parametrize("name", METHODS)
def test_the_model_has_groups_random_under_their_prior_and_points_beside(name):
    net = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    model = methods[name]().adapt(make_model(net))
    weights = {"0.weight", "2.weight"} | ({"0.bias", "2.bias"} if name == "horseshoe" else set())
    assert set(model.random) == weights and {"1.weight", "1.bias"} <= set(model.point)
    prior = model.prior.at(next(iter(model.random.values())))
    assert isinstance(prior, GroupPrior) and prior.proper == (name != "group_normal_jeffreys")


@pytest.mark.parametrize("name", METHODS)
def test_a_network_without_units_is_refused(name):
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(3, 2))

        def forward(self, x):
            return x @ self.w

    with pytest.raises(
        SettingError,
        match=rf"{name}: none of the random parameters \(w\) is a weight with known units",
    ):
        BNN(Own()).fit(
            (torch.randn(4, 3), torch.tensor([0, 1, 0, 1])), name, epochs=1, progress=False
        )


def test_scales_have_a_learning_rate_of_their_own():
    with isolated(0):
        net, x = nn.Linear(3, 2), torch.randn(8, 3)
    fits = {}
    for rate in (1.0, 10.0):
        how = {
            "epochs": 1,
            "lr": 1e-3,
            "batch_size": 8,
            "scale_lr": rate,
            "kl_schedule": "constant",
            "progress": False,
        }
        family = (
            BNN(net).fit((x, torch.arange(8) % 2), "group_horseshoe", **how).posterior.factors[0]
        )
        assert isinstance(family, GroupScale)
        fits[rate] = (family.scales.raw_std.detach() - torch.tensor(0.1).log()).abs().max()
    assert float(fits[1.0]) == pytest.approx(1e-3, rel=0.05) and float(fits[10.0]) == pytest.approx(
        1e-2, rel=0.05
    )
