"""The code of a whole network: it comes back, and its length is the sum over tensors."""

import pytest
import torch
from torch import nn
from zoo.sparse import generator, lenet_like, random_codes, sparse_codes

from credo.compress.bit_stream import BitReader, BitWriter
from credo.compress.quantised import Coded, Quantised
from credo.compress.weight_coding import code_length, code_network, write_entries


def test_the_code_length_is_the_sum_over_tensors_and_has_parts():
    _, quantised = lenet_like()
    costs = write_entries(quantised, BitWriter())
    assert code_length(quantised) == pytest.approx(sum(cost.bits for cost in costs.values()))
    assert sum(cost.nonzero for cost in costs.values()) == quantised.nonzero
    heavy = costs["5.weight"]
    assert heavy.positions > heavy.values > heavy.book > 0 == heavy.raw


def test_a_sparse_lenet_takes_fewer_than_ten_bits_per_weight_left():
    """Its 1,300 positions alone would take log2 C(431080, 1300) / 1300 = 9.8 bits each if all
    weights were alike.
    """
    _, quantised = lenet_like()
    costs = write_entries(quantised, BitWriter())
    where = sum(cost.positions for cost in costs.values()) / quantised.nonzero
    assert where < 6.5
    assert code_length(quantised) / quantised.nonzero < 10


@pytest.mark.parametrize("levels_", [0, 1, 5, 40])
def test_networks_of_random_codes_come_back(levels_, pace):
    net = nn.Sequential(
        nn.Conv1d(2, 3, 3), nn.Flatten(), nn.Linear(6, 4, bias=False), nn.Bilinear(2, 2, 3)
    )
    for seed, density in enumerate((0.1, 0.5, 1.0)):
        quantised = random_codes(net, seed, density, levels_)
        writer = BitWriter()
        write_entries(quantised, writer)
        back = code_network(BitReader(writer.encoded()), net.state_dict())
        for name in quantised:
            entry, found = quantised[name], back[name]
            assert isinstance(entry, Coded) and isinstance(found, Coded)
            assert torch.equal(entry.codes, found.codes) and torch.equal(entry.book, found.book)


def test_scalars_and_empty_tensors_are_coded_too():
    state = {"a": torch.tensor(0.5), "b": torch.zeros(0, 3), "c": torch.zeros(2, 2)}
    quantised = Quantised({name: Coded.of(tensor) for name, tensor in state.items()})
    writer = BitWriter()
    write_entries(quantised, writer)
    back = code_network(BitReader(writer.encoded()), state)
    assert all(torch.equal(back[name].tensor(), state[name]) for name in state)


def test_made_up_codes_have_the_counts_asked_for():
    coded = sparse_codes(torch.Size([50, 20, 5, 5]), 400, 0.5, 0.5)
    assert coded.nonzero == 400 and len(coded.book) <= 12
    assert torch.rand(1, generator=generator()) == torch.rand(1, generator=generator())
