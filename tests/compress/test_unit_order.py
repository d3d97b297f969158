"""Sorting hidden units: the same function, a shorter file."""

import pytest
import torch
from torch import nn
from zoo.sparse import generator, lenet_like, random_codes

from credo.compress.quantised import Coded, Quantised, Raw
from credo.compress.unit_order import with_sorted_units
from credo.compress.weight_coding import code_length
from credo.core.errors import NetworkError


def outputs(quantised, net, x):
    return quantised.fill(net).double()(x.double())


def agree(quantised, net, x):
    """In float64, where only the order of summation differs."""
    sorted_ = with_sorted_units(quantised, net)
    assert torch.allclose(
        outputs(sorted_, net, x), outputs(quantised, net, x), rtol=1e-10, atol=1e-12
    )
    assert (sorted_.numel, sorted_.nonzero) == (quantised.numel, quantised.nonzero)
    return sorted_


def test_a_sorted_lenet_is_the_same_function_in_a_shorter_file():
    net, quantised = lenet_like()
    sorted_ = agree(quantised, net, torch.randn(5, 1, 28, 28, generator=generator()))
    assert code_length(sorted_) < 0.97 * code_length(quantised)
    counts = sorted_["5.weight"].tensor().count_nonzero(1)
    assert bool((counts.diff() <= 0).all())


def test_normalisation_and_nested_parts_move_along():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        block = nn.Sequential(nn.Conv2d(2, 5, 2), nn.BatchNorm2d(5), nn.ReLU(), nn.MaxPool2d(2))
        net = nn.Sequential(
            block,
            nn.Flatten(),
            nn.BatchNorm1d(20),
            nn.Linear(20, 6),
            nn.Tanh(),
            nn.Linear(6, 3, bias=False),
        )
        for _ in range(3):
            net(torch.randn(16, 2, 5, 5))
    entries = {
        name: Coded.of((tensor * 4).round() / 4)
        if name.endswith("weight") and tensor.dim() > 1
        else Raw(tensor)
        for name, tensor in net.state_dict().items()
    }
    agree(Quantised(entries), net.eval(), torch.randn(4, 2, 5, 5, generator=generator()))


def test_sorting_twice_changes_nothing():
    net, quantised = lenet_like()
    once = with_sorted_units(quantised, net)
    twice = with_sorted_units(once, net)
    assert all(torch.equal(once[name].tensor(), twice[name].tensor()) for name in once)


def test_a_single_layer_has_no_hidden_units():
    net = nn.Linear(4, 3)
    quantised = random_codes(net, 0, 0.5, 3)
    assert torch.equal(
        with_sorted_units(quantised, net).values("weight"), quantised.values("weight")
    )


shared = nn.Linear(4, 4)


@pytest.mark.parametrize(
    "net, words",
    [
        (
            nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2)),
            "around 1: it is a LayerNorm",
        ),
        (nn.Sequential(nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1, groups=2)), "it has 2 groups"),
        (nn.Sequential(shared, nn.ReLU(), shared), "used twice"),
        (nn.Sequential(nn.Conv2d(1, 4, 1), nn.Linear(4, 2)), "reads positions"),
        (nn.Sequential(nn.Conv2d(1, 4, 1), nn.Flatten(2), nn.Conv1d(4, 2, 1)), "flattens axes 2"),
        (nn.Sequential(nn.Linear(3, 4), nn.MaxPool1d(2), nn.Linear(2, 2)), "units as positions"),
        (
            nn.Sequential(nn.Linear(3, 4), nn.Flatten(), nn.Linear(8, 2)),
            "reads 8 numbers where 4 units come in",
        ),
        (
            nn.Sequential(nn.Conv2d(1, 4, 1), nn.Flatten(), nn.Linear(6, 2)),
            "reads 6 numbers where 4 units",
        ),
        (nn.Bilinear(2, 2, 2), "around the network: it is a Bilinear"),
    ],
)
def test_what_is_no_chain_is_refused(net, words):
    with pytest.raises(NetworkError, match=words):
        with_sorted_units(random_codes(net, 0, 0.5, 3), net)
