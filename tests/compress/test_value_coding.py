"""The model of values: exact both ways, near the entropy, and better where signs depend on their
neighbours.
"""

import math

import numpy as np
import pytest

from credo.compress.bit_stream import BitReader, BitWriter
from credo.compress.position_coding import Matrix
from credo.compress.value_coding import code_values


def value_bits(mask, book, codes):
    writer, matrix = BitWriter(), Matrix(*mask.shape, max(mask.shape[1], 1))
    code_values(writer, matrix, mask, book, codes)
    assert np.array_equal(code_values(BitReader(writer.encoded()), matrix, mask, book), codes)
    return writer.length()


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
