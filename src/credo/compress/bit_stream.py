"""Bits written to or read from an entropy-coded stream, and the adaptive models that give their
probabilities.

A model tells the stream how likely a one is, as a whole number of 65,536ths, and passes the bit;
the stream returns the bit. A writer stores what was passed, a reader ignores it and returns the
stored bit, so the same code writes and reads, and the two cannot disagree. All probabilities come
from whole-number arithmetic: a file reads the same on every machine.
"""

from __future__ import annotations

import importlib
import importlib.util
from abc import ABC, abstractmethod
from array import array
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from credo.core.errors import RunError, SettingError

ONE = 1 << 16  #: certainty; a chance of a one lies strictly between 0 and this
FAIR = ONE // 2
# bits of the largest whole number a file may hold: far above any count, and a limit for damaged
# files
_MAX_BITS = 48
# leading bits of a whole number, after the first, whose chances are learned; the rest are fair
_LEARNED_BITS = 2


def coder_of(owner: str) -> Any:
    """The package constriction's stream coders, or an error that says who needs them."""
    if importlib.util.find_spec("constriction") is None:
        raise SettingError(
            f"{owner} needs the package 'constriction'; install it with pip install "
            "'credo-bayes[compress]'."
        )
    return importlib.import_module("constriction").stream


def to_bytes(words: NDArray[np.uint32]) -> bytes:
    """Words of a coder as bytes, without the zeros at the end: its last word is never zero, so they
    can be put back.
    """
    return words.astype("<u4").tobytes().rstrip(b"\0")


def to_words(data: bytes) -> NDArray[np.uint32]:
    """The inverse of :func:`to_bytes`."""
    return np.frombuffer(data + b"\0" * (-len(data) % 4), dtype="<u4").astype(np.uint32)


class BitStream(ABC):
    """Where bits are written to or read from (abstract)."""

    @abstractmethod
    def bit(self, chance: int, value: int = 0) -> int:
        """Write ``value``, or read a bit; it is one with probability ``chance`` / 65536."""

    @abstractmethod
    def bits(self, chances: NDArray[Any], values: NDArray[Any] | None) -> NDArray[np.int64]:
        """The same for many bits at once, ``(n,)``, with a chance each."""


@final
class BitWriter(BitStream):
    """Collects every bit and its chance, then encodes them all, the last one first: the coder is a
    stack.
    """

    def __init__(self) -> None:
        self._values, self._chances = array("b"), array("H")

    def bit(self, chance: int, value: int = 0) -> int:
        self._values.append(value)
        self._chances.append(chance)
        return value

    def bits(self, chances: NDArray[Any], values: NDArray[Any] | None) -> NDArray[np.int64]:
        assert values is not None
        self._values.frombytes(values.astype(np.int8).tobytes())
        self._chances.frombytes(chances.astype(np.uint16).tobytes())
        return values.astype(np.int64)

    def __len__(self) -> int:
        return len(self._values)

    def length(self, start: int = 0) -> float:
        """Information in the bits from the ``start``-th on, in bits: the sum of -log2 p."""
        values = np.frombuffer(self._values, np.int8)[start:]
        chances = np.frombuffer(self._chances, np.uint16)[start:].astype(np.float64)
        return float(np.log2(ONE / np.where(values == 1, chances, ONE - chances)).sum())

    def encoded(self) -> bytes:
        """The stream, at most a byte or two longer than ``length``."""
        stream = coder_of("Writing a compressed network")
        coder = stream.stack.AnsCoder()
        values, chances = (
            np.frombuffer(self._values, np.int8),
            np.frombuffer(self._chances, np.uint16),
        )
        if len(values):
            coder.encode_reverse(
                values.astype(np.int32), stream.model.Bernoulli(perfect=False), chances / ONE
            )
        return to_bytes(coder.get_compressed())


@final
class BitReader(BitStream):
    """Reads what a :class:`BitWriter` encoded. Other bytes give bits without meaning, so check a
    checksum first.
    """

    def __init__(self, data: bytes) -> None:
        stream = coder_of("Reading a compressed network")
        self._coder = stream.stack.AnsCoder(to_words(data))
        self._model = stream.model.Bernoulli

    def bit(self, chance: int, value: int = 0) -> int:
        return self._coder.decode(self._model(chance / ONE, perfect=False))

    def bits(self, chances: NDArray[Any], values: NDArray[Any] | None) -> NDArray[np.int64]:
        if not len(chances):
            return np.zeros(0, np.int64)
        return self._coder.decode(self._model(perfect=False), chances / ONE).astype(np.int64)

    @property
    def done(self) -> bool:
        """Whether everything was read."""
        return self._coder.is_empty()


@final
class AdaptiveBit:
    """A bit whose probability is learned from those before it: (ones + 1/2) / (all + 1), the
    estimate of Krichevsky and Trofimov (1981).
    """

    __slots__ = ("ones", "zeros")

    def __init__(self) -> None:
        self.ones, self.zeros = 1, 1  # twice the count, plus one

    def code(self, stream: BitStream, value: int = 0) -> int:
        """Write or read the next bit of this kind."""
        chance = self.ones * ONE // (self.ones + self.zeros)
        value = stream.bit(min(max(chance, 1), ONE - 1), value)
        if value:
            self.ones += 2
        else:
            self.zeros += 2
        return value


@final
class AdaptiveInteger:
    """Whole numbers from 0, small ones likely: Elias' gamma code of n + 1, in which the length and
    the leading bits have learned probabilities.
    """

    def __init__(self) -> None:
        self._bits: dict[tuple[object, int, int], AdaptiveBit] = {}

    def _bit(self, context: object, size: int, place: int) -> AdaptiveBit:
        key = (context, size, place)
        found = self._bits.get(key)
        if found is None:
            found = self._bits[key] = AdaptiveBit()
        return found

    def code(
        self, stream: BitStream, context: object = None, value: int = 0, most: int = 1 << _MAX_BITS
    ) -> int:
        """Write or read the next number; numbers of one context are learned together.

        A file that holds more than ``most`` is refused.
        """
        wanted, size = (value + 1).bit_length() - 1, 0
        while self._bit(context, -1, size).code(stream, int(size < wanted)):
            size += 1
            if 1 << size > most + 1:
                raise RunError(
                    f"The file holds a number above {most}, which no network has; it was not "
                    "written by credo. Write it again."
                )
        number = 1
        for place in range(size):
            bit = (value + 1) >> (size - 1 - place) & 1
            bit = (
                self._bit(context, size, number).code(stream, bit)
                if place < _LEARNED_BITS
                else stream.bit(FAIR, bit)
            )
            number = number << 1 | bit
        return number - 1
