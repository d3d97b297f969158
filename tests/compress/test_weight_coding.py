"""Models of positions and values: exact both ways, near the entropy where it is known, and better
where there is structure to learn.
"""

import math

import numpy as np
import pytest
import torch
from torch import nn
from zoo.sparse import generator, lenet_like, random_codes, sparse_codes

from credo.compress import weight_coding
from credo.compress.bit_stream import BitReader, BitWriter
from credo.compress.quantised import Coded, Quantised
from credo.compress.weight_coding import (
    Matrix,
    code_length,
    code_network,
    code_positions,
    code_values,
    write_entries,
)

SHAPES = [(1, 1), (1, 7), (7, 1), (5, 3), (30, 40), (0, 4), (4, 0)]


def flat(rows, columns, group=None, parents=()):
    return Matrix(rows, columns, group or max(columns, 1), parents)


def mask_bits(mask, matrix=None):
    """Length in bits, after checking that the mask comes back."""
    matrix = matrix or flat(*mask.shape)
    writer = BitWriter()
    code_positions(writer, matrix, mask)
    assert np.array_equal(code_positions(BitReader(writer.encoded()), matrix), mask)
    return writer.length()


def value_bits(mask, book, codes):
    writer, matrix = BitWriter(), flat(*mask.shape)
    code_values(writer, matrix, mask, book, codes)
    assert np.array_equal(code_values(BitReader(writer.encoded()), matrix, mask, book), codes)
    return writer.length()


def entropy(p):
    return -p * math.log2(p) - (1 - p) * math.log2(1 - p)


@pytest.fixture(params=["bit by bit", "at once"])
def pace(request, monkeypatch):
    """Both ways of coding, whatever the size."""
    if request.param == "at once":
        monkeypatch.setattr(weight_coding, "_MOST_CELLS", 0)
        monkeypatch.setattr(weight_coding, "_MOST_VALUES", 0)
    return request.param


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("density", [0.0, 0.05, 0.5, 0.9, 1.0])
def test_every_mask_comes_back(shape, density, pace):
    for seed in range(3):
        mask_bits(np.random.default_rng(seed).random(shape) < density)


def test_masks_with_full_rows_and_columns_come_back(pace):
    mask = np.zeros((12, 9), bool)
    mask[3] = mask[:, 4] = mask[11] = True
    mask_bits(mask)
    mask_bits(~mask)


@pytest.mark.parametrize("density, most", [(0.02, 1.12), (0.1, 1.08), (0.5, 1.06)])
def test_independent_cells_cost_their_entropy_and_a_few_bits_per_unit(density, most, pace):
    """Nothing to learn here: the surplus is the counts of 200 + 150 units."""
    mask = np.random.default_rng(0).random((200, 150)) < density
    assert mask_bits(mask) < most * mask.size * entropy(mask.mean())


def test_empty_and_full_tensors_cost_next_to_nothing():
    for value in (False, True):
        assert mask_bits(np.full((500, 800), value)) < 24


def test_units_that_differ_are_learned():
    """Against the entropy of cells that are alike: 5 of 100 rows and 10 of 200 columns hold all
    ones.
    """
    mask = np.zeros((100, 200), bool)
    mask[::20, ::20] = np.random.default_rng(0).random((5, 10)) < 0.7
    assert mask_bits(mask) < 0.6 * mask.size * entropy(mask.mean())


def test_units_before_tell_which_columns_are_empty():
    alive = np.random.default_rng(0).random(100) < 0.2
    mask = (np.random.default_rng(1).random((50, 400)) < 0.05) & np.repeat(alive, 4)
    told = mask_bits(mask, flat(50, 400, 4, tuple((alive * 4).tolist())))
    assert told < mask_bits(mask, flat(50, 400, 4)) - 30


def test_sorted_rows_cost_less():
    mask = (
        np.random.default_rng(0).random((300, 40)) < np.random.default_rng(1).random((300, 1)) ** 6
    )
    order = np.argsort(-mask.sum(1), kind="stable")
    assert mask_bits(mask[order]) < mask_bits(mask) - 300


def test_rows_are_outputs_and_columns_continue_the_units_before():
    assert Matrix.of(torch.Size([20, 1, 5, 5]), ()) == Matrix(20, 25, 25)
    assert Matrix.of(torch.Size([50, 20, 5, 5]), (1,) * 20) == Matrix(50, 500, 25, (1,) * 20)
    assert Matrix.of(torch.Size([500, 800]), (2,) * 50) == Matrix(500, 800, 16, (2,) * 50)
    assert Matrix.of(torch.Size([500]), (2,) * 500) == Matrix(1, 500, 1, (2,) * 500)
    assert Matrix.of(torch.Size([10, 30]), (2,) * 7) == Matrix(10, 30, 30)
    assert Matrix.of(torch.Size([]), ()) == Matrix(1, 1, 1)
    matrix = Matrix(1, 4, 1, (0, 1, 5, 6))
    assert [matrix.unit_class(column) for column in range(4)] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "book",
    [
        [1.0],
        [-1.0],
        [-1.0, 2.0],
        [1.0, 2.0, 3.0],
        [-3.0, -2.0, -1.0],
        list(np.arange(1.0, 12.0)),
        [-2.0, *range(1, 7)],
    ],
)
def test_every_value_comes_back(book, pace):
    noise = np.random.default_rng(0)
    mask = noise.random((20, 30)) < 0.3
    codes = noise.integers(1, len(book) + 1, mask.shape) * mask
    value_bits(mask, np.array(book, float), codes)
    value_bits(~mask & mask, np.array(book, float), codes * 0)


def test_values_cost_their_entropy_and_what_it_takes_to_learn_it(pace):
    """KT's bound: half a logarithm for each learned chance.

    At most 16 chances and 5 signs at 3,000 values; at once, a sixty-fourth more.
    """
    noise = np.random.default_rng(0)
    share = np.array([0.05, 0.1, 0.3, 0.1, 0.15, 0.2, 0.05, 0.05])
    codes = noise.choice(8, (60, 50), p=share) + 1
    counts = np.bincount(codes.ravel())[1:] / codes.size
    ideal = -codes.size * float((counts * np.log2(counts)).sum())
    book = np.array([-4.0, -3.0, -2.0, -1.0, 1.0, 2.0, 3.0, 4.0])
    assert value_bits(np.ones(codes.shape, bool), book, codes) < ideal * (1 + 1 / 64) + 21 * (
        math.log2(codes.size) / 2 + 1
    )


def test_a_sign_that_follows_its_neighbour_is_learned():
    signs = np.repeat(np.random.default_rng(0).integers(0, 2, (40, 10)), 5, axis=1)
    codes = signs + 1
    assert value_bits(np.ones(codes.shape, bool), np.array([-1.0, 1.0]), codes) < 0.8 * codes.size


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
