"""Exact numbers in as few bits as they need: the codebooks of quantised tensors (the values that
their codes stand for), and tensors that are stored as they are.

A real number is written by the leading bits of its pattern as a float16, float32 or float64; how
many suffice for all numbers of a tensor is found, not set, so a codebook rounded to 9 bits costs
9 bits a value. A codebook of evenly spaced values is written as its step and whole numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from credo.compress.bit_stream import FAIR, AdaptiveInteger, BitStream, BitWriter

_FLOATS = ((np.float16, np.uint16), (np.float32, np.uint32), (np.float64, np.uint64))
_CHUNK = 1 << 16  # numbers coded at once, so that memory stays bounded

# values of a codebook: more are no quantisation, and a damaged file must not ask for any amount of
# memory
_MAX_VALUES = (1 << 24) - 1
_MAX_STEPS = (
    1 << 20
)  # steps from zero: values farther apart than this are no grid that anyone chose

Doubles = NDArray[np.float64]


def _fair(stream: BitStream, count: int, value: int = 0) -> int:
    """A number of ``count`` fair bits."""
    out = 0
    for place in range(count - 1, -1, -1):
        out = out << 1 | stream.bit(FAIR, value >> place & 1)
    return out


def _patterns(
    stream: BitStream, count: int, width: int, values: NDArray[np.uint64] | None
) -> NDArray[np.uint64]:
    """``count`` numbers of ``width`` fair bits each."""
    places = np.arange(width - 1, -1, -1, dtype=np.uint64)
    parts = []
    for start in range(0, count, _CHUNK):
        size = min(_CHUNK, count - start)
        bits = (
            None
            if values is None
            else (values[start : start + size, None] >> places & np.uint64(1)).ravel()
        )
        back = stream.bits(np.full(size * width, FAIR), bits).astype(np.uint64).reshape(size, width)
        parts.append((back << places).sum(1, dtype=np.uint64))
    return np.concatenate(parts) if parts else np.zeros(0, np.uint64)


def reals(stream: BitStream, count: int, values: Doubles | None = None) -> Doubles:
    """``count`` real numbers, exactly, NaN and infinities included: 2 bits for the format, up to 7
    for the width, then ``width`` bits each.
    """
    if count == 0:
        return np.zeros(0)
    form, width, given = 0, 0, None
    if values is not None:
        exact = [
            found for form in range(len(_FLOATS)) if (found := _leading(values, form)) is not None
        ]
        form, width, given = min(exact, key=lambda found: found[1])
    form = _fair(stream, 2, form)
    floating, pattern = _FLOATS[form]
    size = 8 * np.dtype(floating).itemsize
    width = _fair(stream, size.bit_length(), width)
    back = (
        _patterns(stream, count, width, given) << np.uint64(size - width)
        if width
        else np.zeros(count, np.uint64)
    )
    return back.astype(pattern).view(floating).astype(np.float64)


def _leading(values: Doubles, form: int) -> tuple[int, int, NDArray[np.uint64]] | None:
    """Format, width and leading bits of numbers that a format holds exactly; None where it does
    not.
    """
    floating, pattern = _FLOATS[form]
    with np.errstate(over="ignore"):
        cast = values.astype(floating)
    if cast.astype(np.float64).tobytes() != values.tobytes():
        return None
    bits = cast.view(pattern).astype(np.uint64)
    union = int(np.bitwise_or.reduce(bits))
    size = 8 * np.dtype(floating).itemsize
    unused = (union & -union).bit_length() - 1 if union else size
    return form, size - unused, bits >> np.uint64(min(unused, 63))


def wholes(
    stream: BitStream, count: int, values: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """``count`` whole numbers in the bits of the largest: 7 bits for the width, then ``width`` bits
    each, the sign last.
    """
    folded, width = None, 0
    if values is not None:
        folded = (values << 1 ^ values >> 63).view(np.uint64)
        width = int(folded.max()).bit_length() if count else 0
    width = _fair(stream, 7, width)
    back = _patterns(stream, count, width, folded) if width else np.zeros(count, np.uint64)
    return (back >> np.uint64(1)).astype(np.int64) ^ -(back & np.uint64(1)).astype(np.int64)


def raw(stream: BitStream, like: Tensor, values: Tensor | None = None) -> Tensor:
    """A tensor as it is, in the shape and type of ``like``."""
    flat = None if values is None else values.reshape(-1)
    if like.is_floating_point():
        back: Any = reals(stream, like.numel(), None if flat is None else flat.double().numpy())
    else:
        back = wholes(stream, like.numel(), None if flat is None else flat.long().numpy())
    return torch.from_numpy(back).to(like.dtype).reshape(like.shape)


@final
class Codebooks:
    """The codebooks of a network, one after another: as a repetition of the last one, as evenly
    spaced values, or as a list, whichever is shortest.
    """

    def __init__(self) -> None:
        self._numbers = AdaptiveInteger()
        self._last: Doubles = np.zeros(0)
        self._step = 0.0

    def code(self, stream: BitStream, book: Doubles | None = None) -> Doubles:
        """Write or read one codebook, ascending ``(K,)``."""
        ways: list[Callable[[BitStream, Doubles | None], Doubles]] = [
            self._again,
            self._spaced,
            self._listed,
        ]
        chosen = 0 if book is None else self._shortest(book)
        chosen = self._numbers.code(stream, "way", chosen)
        self._last = ways[chosen](stream, book)
        return self._last

    def _shortest(self, book: Doubles) -> int:
        """Which way is shortest, found by writing both to a stream that is thrown away."""
        if np.array_equal(book, self._last):
            return 0
        if len(book) == 0 or max(map(abs, _spacing(book)[1])) > _MAX_STEPS:
            return 2
        lengths = []
        for way in (self._spaced, self._listed):
            before, trial = (self._numbers, self._step), BitWriter()
            self._numbers = AdaptiveInteger()
            way(trial, book)
            self._numbers, self._step = before
            lengths.append(trial.length())
        return 1 if lengths[0] < lengths[1] else 2

    def _again(self, stream: BitStream, book: Doubles | None) -> Doubles:
        return self._last

    def _listed(self, stream: BitStream, book: Doubles | None) -> Doubles:
        count = self._numbers.code(stream, "count", 0 if book is None else len(book), _MAX_VALUES)
        return reals(stream, count, book)

    def _spaced(self, stream: BitStream, book: Doubles | None) -> Doubles:
        """Step times whole numbers, of which the lowest is written, then how many each one skips;
        zero is never one of them.

        A step that is that of the last such book is not written again.
        """
        step, steps = (None, [0]) if book is None else _spacing(book)
        count = self._numbers.code(
            stream, "count", len(steps) if book is not None else 0, _MAX_VALUES
        )
        if not self._numbers.code(stream, "same step", int(step == self._step)):
            self._step = float(reals(stream, 1, None if step is None else np.array([step]))[0])
        folded = self._numbers.code(stream, "lowest", _fold(steps[0]))
        out = [folded >> 1 ^ -(folded & 1)]
        for index in range(1, count):
            usual = out[-1] + (2 if out[-1] == -1 else 1)
            out.append(
                usual
                + self._numbers.code(
                    stream, "skip", steps[index] - usual if book is not None else 0
                )
            )
        return np.array(out, np.float64) * self._step


def _fold(number: int) -> int:
    return number << 1 if number >= 0 else (-number << 1) - 1


def _spacing(book: Doubles) -> tuple[float, list[int]]:
    """The largest step of which all values are whole multiples, exactly, and those multiples."""
    ratios = [float(value).as_integer_ratio() for value in book]
    below = max(bottom for _, bottom in ratios)  # powers of two, so the largest serves all
    scaled = [top * (below // bottom) for top, bottom in ratios]
    step = math.gcd(*scaled)
    return step / below, [number // step for number in scaled]
