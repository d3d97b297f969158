"""The model of positions: exact both ways, near the entropy where it is known, and better where
there is structure to learn.
"""

import math

import numpy as np
import pytest
import torch

from credo.compress.bit_stream import BitReader, BitWriter
from credo.compress.position_coding import Matrix, code_positions

SHAPES = [(1, 1), (1, 7), (7, 1), (5, 3), (30, 40), (0, 4), (4, 0)]


def flat(rows, columns, columns_per_unit=None, unit_counts=()):
    return Matrix(rows, columns, columns_per_unit or max(columns, 1), unit_counts)


def mask_bits(mask, matrix=None):
    """Length in bits, after checking that the mask comes back."""
    matrix = matrix or flat(*mask.shape)
    writer = BitWriter()
    code_positions(writer, matrix, mask)
    assert np.array_equal(code_positions(BitReader(writer.encoded()), matrix), mask)
    return writer.length()


def entropy(p):
    return -p * math.log2(p) - (1 - p) * math.log2(1 - p)


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
