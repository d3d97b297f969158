"""Bits through the entropy coder: what is read is what was written, at the length the chances
say.
"""

import importlib.util

import numpy as np
import pytest

from credo.compress.bit_stream import (
    FAIR,
    ONE,
    AdaptiveBit,
    AdaptiveInteger,
    BitReader,
    BitWriter,
    to_bytes,
    to_words,
)
from credo.core.errors import RunError, SettingError

# the coder's probabilities have 24 bits, all of which the first one it writes takes; and the last
# byte is rounded up
STATE_BYTES = 4


def random_bits(count, seed=0):
    noise = np.random.default_rng(seed)
    chances = noise.integers(1, ONE, count)
    return chances, (noise.random(count) < chances / ONE).astype(np.int64)


@pytest.mark.parametrize("count", [0, 1, 2, 50, 5000])
def test_bits_come_back_one_by_one_and_all_at_once(count):
    chances, bits = random_bits(count)
    one, many = BitWriter(), BitWriter()
    for chance, bit in zip(chances.tolist(), bits.tolist(), strict=True):
        one.bit(chance, bit)
    many.bits(chances, bits)
    data = one.encoded()
    assert data == many.encoded() and len(one) == count
    assert len(data) <= one.length() / 8 + STATE_BYTES
    reader = BitReader(data)
    assert [reader.bit(chance) for chance in chances.tolist()] == bits.tolist()
    assert reader.done
    assert np.array_equal(BitReader(data).bits(chances, None), bits)


def test_the_length_is_the_sum_of_minus_log2_p():
    writer = BitWriter()
    writer.bit(ONE // 4, 1)
    writer.bit(ONE // 4 * 3, 1)
    assert writer.length() == pytest.approx(2 - np.log2(0.75))
    assert writer.length(1) == pytest.approx(-np.log2(0.75))


def test_words_survive_the_loss_of_zeros_at_the_end():
    for words in ([], [1], [0, 256], [7, 0, 0xFFFFFFFF]):
        array = np.array(words, np.uint32)
        assert np.array_equal(to_words(to_bytes(array)), array)


def test_an_adaptive_bit_costs_its_entropy_and_half_a_logarithm():
    """Krichevsky and Trofimov: at most log2(n) / 2 + 1 bits above the entropy of the sequence,
    whichever it is (chances are 16-bit numbers).
    """
    for ones in (0, 3, 500):
        values = np.random.default_rng(0).permutation([1] * ones + [0] * (1000 - ones)).tolist()
        writer, bit = BitWriter(), AdaptiveBit()
        for value in values:
            bit.code(writer, value)
        share = ones / 1000
        entropy = sum(-1000 * p * np.log2(p) for p in (share, 1 - share) if p > 0)
        assert writer.length() <= entropy + np.log2(1000) / 2 + 1 + 1000 * 2.0**-10
        reader, bit = BitReader(writer.encoded()), AdaptiveBit()
        assert [bit.code(reader) for _ in values] == values


def test_whole_numbers_of_all_sizes_come_back_by_context():
    numbers = [0, 1, 2, 3, 0, 0, 7, 100, 65535, 1 << 40, 0]
    writer, model = BitWriter(), AdaptiveInteger()
    for index, number in enumerate(numbers):
        assert model.code(writer, index % 2, number) == number
    reader, again = BitReader(writer.encoded()), AdaptiveInteger()
    assert [again.code(reader, index % 2) for index in range(len(numbers))] == numbers


def test_a_thousand_zeros_cost_next_to_nothing():
    writer, numbers = BitWriter(), AdaptiveInteger()
    for _ in range(1000):
        numbers.code(writer, None, 0)
    assert writer.length() < 8


def test_a_number_without_end_is_refused():
    writer = BitWriter()
    writer.bits(np.full(200, FAIR), np.ones(200))

    class Ones:
        def bit(self, chance, value=0):
            return 1

    with pytest.raises(RunError, match="no network has"):
        AdaptiveInteger().code(Ones())  # type: ignore[arg-type]


def test_a_missing_coder_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SettingError, match=r"pip install 'credo-bayes\[compress\]'"):
        BitWriter().encoded()
