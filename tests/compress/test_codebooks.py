"""Numbers in few bits: exact, and as short as they can be."""

import numpy as np
import pytest
import torch

from credo.compress.bit_stream import BitReader, BitWriter
from credo.compress.codebooks import Codebooks, raw, reals, wholes

AWKWARD = [0.0, -0.0, 1.0, -2.5, float("inf"), float("-inf"), float("nan"), 65504.0, 6e-8]


def round_trip(code, count, values):
    writer = BitWriter()
    code(writer, count, values)
    return code(BitReader(writer.encoded()), count), writer.length()


@pytest.mark.parametrize("kind, most", [(np.float16, 16), (np.float32, 32), (np.float64, 64)])
def test_real_numbers_come_back_bit_by_bit_in_the_smallest_format(kind, most):
    values = (
        np.concatenate([np.array(AWKWARD[:6]), np.random.default_rng(0).normal(size=500)])
        .astype(kind)
        .astype(np.float64)
    )
    back, bits = round_trip(reals, len(values), values)
    assert back.tobytes() == values.tobytes()
    assert bits <= most * len(values) + 9


def test_only_the_bits_that_are_used_are_written():
    for values, width in (
        ([1.0, 2.0, -4.0], 6),
        ([1.5, 0.75], 7),
        ([0.0, 0.0], 0),
        ([1.0 + 2.0**-7], 16 - 3),
    ):
        back, bits = round_trip(reals, len(values), np.array(values))
        assert back.tolist() == values and bits == len(values) * width + 2 + 5


def test_bfloat16_numbers_take_sixteen_bits():
    values = (torch.tensor([1e20, -3e-20, 7.0]).bfloat16()).double().numpy()
    back, bits = round_trip(reals, 3, values)
    assert np.array_equal(back, values) and bits <= 3 * 16 + 8


def test_no_numbers_take_no_bits():
    assert round_trip(reals, 0, np.zeros(0))[1] == 0


@pytest.mark.parametrize("values", [[], [0, 0], [1, -1, 5], [2**63 - 1, -(2**63)], [12000]])
def test_whole_numbers_come_back(values):
    array = np.array(values, np.int64)
    back, bits = round_trip(wholes, len(array), array)
    assert np.array_equal(back, array)
    assert bits <= 7 + len(array) * 64


def test_many_numbers_are_handed_over_in_parts():
    values = np.arange(70_000, dtype=np.int64) % 8
    back, bits = round_trip(wholes, len(values), values)
    assert np.array_equal(back, values) and bits == 7 + 4 * len(values)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.float64,
        torch.int64,
        torch.uint8,
        torch.bool,
    ],
)
def test_raw_tensors_keep_their_type(dtype):
    values = (torch.arange(12).reshape(3, 4) % 5).to(dtype)
    writer = BitWriter()
    raw(writer, values, values)
    back = raw(BitReader(writer.encoded()), values)
    assert back.dtype == dtype and torch.equal(back, values)


def books_round_trip(books):
    writer, codebooks, lengths = BitWriter(), Codebooks(), []
    for book in books:
        start = len(writer)
        codebooks.code(writer, np.array(book))
        lengths.append(writer.length(start))
    reader, again = BitReader(writer.encoded()), Codebooks()
    assert [again.code(reader).tolist() for _ in books] == [list(book) for book in books]
    return lengths


def test_a_grid_costs_its_step_and_little_more():
    grid = [k * 0.03125 for k in range(-6, 7) if k]
    lengths = books_round_trip([grid, [], [0.5], grid, grid])
    assert lengths[0] < 16 + 32 < 12 * 6
    assert lengths[4] < 5  # the same again: which way, and nothing else


def test_a_step_is_written_once():
    """Books on one grid, each with other ends: from the second on they cost less than the step's
    own 16 bits or so.
    """
    grids = [
        [k * 0.0302734375 for k in range(-low, high) if k] for low, high in ((6, 7), (3, 5), (2, 9))
    ]
    lengths = books_round_trip(grids)
    assert max(lengths[1:]) < lengths[0] - 15


def test_grids_with_holes_and_books_without_a_grid_come_back():
    scattered = (
        np.sort(np.random.default_rng(0).normal(size=8))
        .astype(np.float32)
        .astype(np.float64)
        .tolist()
    )
    lengths = books_round_trip(
        [scattered, [-3.0, 1.0, 8.0], np.array(scattered).astype(np.float16).astype(float).tolist()]
    )
    assert lengths[0] < 8 * 32 + 24 and lengths[2] < 8 * 16 + 24
