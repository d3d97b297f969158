import pytest
import torch
from torch import nn
from zoo.networks import make

from credo.core.errors import NetworkError, SettingError
from credo.core.sites import blocks, choose, select, sites_of


def net():
    return nn.Sequential(nn.Linear(5, 6), nn.LayerNorm(6), nn.Conv1d(1, 2, 3), nn.Linear(6, 2))


@pytest.mark.parametrize(
    ("random", "expected"),
    [
        (
            "all",
            {
                "0.weight",
                "0.bias",
                "1.weight",
                "1.bias",
                "2.weight",
                "2.bias",
                "3.weight",
                "3.bias",
            },
        ),
        ("weights", {"0.weight", "2.weight", "3.weight"}),
        ("last", {"3.weight", "3.bias"}),
        ("*.bias", {"0.bias", "1.bias", "2.bias", "3.bias"}),
        (["0.*", "3.bias"], {"0.weight", "0.bias", "3.bias"}),
        (nn.Conv1d, {"2.weight", "2.bias"}),
        ((nn.Conv1d, "last"), {"2.weight", "2.bias", "3.weight", "3.bias"}),
    ],
)
def test_selections(random, expected):
    chosen, point = select(net(), random)
    assert set(chosen) == expected
    assert set(chosen) | set(point) == {n for n, _ in net().named_parameters()} and not set(
        chosen
    ) & set(point)


def test_frozen_parameters_are_neither_random_nor_point():
    network = net()
    network[0].weight.requires_grad_(False)
    chosen, point = select(network, "weights")
    assert "0.weight" not in chosen and "0.weight" not in point
    with pytest.raises(SettingError, match="'0.weight' matches no parameter"):
        select(network, "0.weight")
    for parameter in network.parameters():
        parameter.requires_grad_(False)
    with pytest.raises(NetworkError, match="no trainable parameter"):
        select(network, "all")


def test_tied_parameters_are_one_site_found_by_any_name():
    tied, _ = make("tied")
    sites = sites_of(tied)
    assert sites["embed.weight"].aliases == ("head.weight",) and "head.weight" not in sites
    assert set(select(tied, "head.weight")[0]) == {"embed.weight"}


@pytest.mark.parametrize(
    ("random", "words"),
    [
        ("0.wieght", "'0.wieght' matches no parameter. Did you mean '0.weight'"),
        (["all", "nothing.*"], "'nothing.*' matches no parameter"),
        (nn.LSTM, "selects no parameter"),
        ([], "selects no parameter"),
        (5, "random=5"),
        (None, "random=None"),
        ([5], "random=5; expected 'all', 'weights', 'last', a name pattern or a module type"),
        (int, "expected 'all', 'weights'"),
    ],
)
def test_selections_that_find_nothing_or_make_no_sense(random, words):
    with pytest.raises(SettingError, match=words.replace(".", r"\.").replace("*", r"\*")):
        select(net(), random)
    words = words.replace("random=", "layers=")
    with pytest.raises(SettingError, match=words.replace(".", r"\.").replace("*", r"\*")):
        choose(net(), random, sites_of(net()), "layers")


@pytest.mark.parametrize(
    ("layer", "fan_in"),
    [
        (nn.Linear(5, 6), 5),
        (nn.Conv2d(4, 6, 3), 36),
        (nn.Conv2d(4, 6, 3, groups=2), 18),
        (nn.ConvTranspose2d(4, 6, 3), 36),
        (nn.ConvTranspose2d(4, 6, 3, groups=2), 18),
        (nn.Embedding(7, 6), 1),
        (nn.LayerNorm(6), 1),
    ],
)
def test_fan_in(layer, fan_in):
    sites = sites_of(layer)
    assert sites["weight"].fan_in == fan_in
    if "bias" in sites:
        assert sites["bias"].fan_in == 1


def test_what_a_site_knows():
    sites = sites_of(nn.Sequential(nn.ConvTranspose1d(4, 6, 3, groups=2).double(), nn.LayerNorm(6)))
    weight, bias = sites["0.weight"], sites["0.bias"]
    assert (
        weight.linear
        and weight.transposed
        and weight.groups == 2
        and weight.dtype == torch.float64
        and weight.numel == 36
    )
    assert bias.partner == "0.weight" and not bias.linear and weight.module == "0"
    assert sites["1.bias"].partner is None and not sites["1.weight"].linear
    assert sites_of(nn.Linear(2, 2))["bias"].partner == "weight"


def test_blocks_put_a_bias_with_its_weight():
    chosen, _ = select(net(), ["0.*", "1.*", "3.bias"])
    assert [[s.name for s in block] for block in blocks(chosen.values())] == [
        ["0.weight", "0.bias"],
        ["1.weight"],
        ["1.bias"],
        ["3.bias"],
    ]
    reordered = [chosen["0.bias"], chosen["0.weight"]]
    assert [[s.name for s in block] for block in blocks(reordered)] == [["0.weight", "0.bias"]]


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2, 3))


@pytest.mark.parametrize(
    ("layer", "axes"),
    [
        (nn.Linear(5, 6), {"weight": 1, "bias": None}),
        (nn.Conv2d(4, 6, 3, groups=2), {"weight": 1, "bias": None}),
        (nn.ConvTranspose1d(4, 6, 3, groups=2), {"weight": 0, "bias": None}),
        (nn.Embedding(7, 6), {"weight": 0}),
        (nn.EmbeddingBag(7, 6), {"weight": 0}),
        (
            nn.LSTM(5, 6, proj_size=2),
            {
                "weight_ih_l0": 1,
                "weight_hh_l0": 1,
                "weight_hr_l0": 1,
                "bias_ih_l0": None,
                "bias_hh_l0": None,
            },
        ),
        (nn.GRUCell(5, 6), {"weight_ih": 1, "weight_hh": 1, "bias_ih": None, "bias_hh": None}),
        (
            nn.MultiheadAttention(4, 2),
            {
                "in_proj_weight": 1,
                "in_proj_bias": None,
                "out_proj.weight": 1,
                "out_proj.bias": None,
            },
        ),
        (
            nn.MultiheadAttention(4, 2, kdim=3, vdim=5, bias=False),
            {"q_proj_weight": 1, "k_proj_weight": 1, "v_proj_weight": 1, "out_proj.weight": 1},
        ),
        (nn.LayerNorm((2, 3)), {"weight": None, "bias": None}),
        (nn.Bilinear(2, 3, 4), {"weight": None, "bias": None}),
        (Own(), {"weight": None}),
    ],
)
def test_the_axis_of_input_units(layer, axes):
    """Its length is the number of inputs, or of inputs per group."""
    assert {name: site.in_axis for name, site in sites_of(layer).items()} == axes


def test_the_first_axis_is_no_less_an_axis_than_the_second():
    """0 is an axis, None is not."""
    assert sites_of(nn.Embedding(7, 6))["weight"].in_axis is not None
