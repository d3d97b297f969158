"""The probability model of values: which values of their codebook the nonzero weights take.

The sign comes first, learned by the sign on the left or else the last one above, then the distance
from zero among the codebook's values of that sign, bit by bit in a tree.

Everything adapts bit by bit up to 2^18 nonzeros. Beyond, a growing block of values is coded at once
with what was known before it, which costs a little more and is fast.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from credo.compress.bit_stream import ONE, AdaptiveBit, BitStream
from credo.compress.position_coding import Flags, Ints, Matrix

_MOST_VALUES = 1 << 18


def code_values(
    stream: BitStream,
    matrix: Matrix,
    mask: Flags,
    book: NDArray[np.float64],
    codes: Ints | None = None,
) -> Ints:
    """Write or read codes ``(rows, columns)``: from 1 to K where ``mask`` is True, 0 elsewhere."""
    out = np.zeros(mask.shape, np.int64)
    if len(book) < 2:
        out[mask] = len(book)
        return out
    split = int((book < 0).sum())
    sides = (split, len(book) - split)  # how many values are negative, how many positive
    one_by_one = int(mask.sum()) <= _MOST_VALUES
    (_one_by_one if one_by_one else _block_by_block)(stream, matrix, mask, sides, codes, out)
    return out


def _one_by_one(
    stream: BitStream,
    matrix: Matrix,
    mask: Flags,
    sides: tuple[int, int],
    codes: Ints | None,
    out: Ints,
) -> None:
    signs = [AdaptiveBit() for _ in range(5)]
    trees = {
        side: [AdaptiveBit() for _ in range(2 << max(count - 1, 0).bit_length())]
        for side, count in enumerate(sides)
    }
    above = [0] * matrix.columns
    before = (-1, -1, 0)
    for row, column in np.argwhere(mask).tolist():
        touching = before[:2] == (row, column - 1) and column % matrix.columns_per_unit > 0
        context = before[2] if touching else 3 * bool(above[column]) + max(above[column] - 1, 0)
        code = 0 if codes is None else int(codes[row, column])
        side = int(code > sides[0])
        if sides[0] and sides[1]:
            side = signs[context].code(stream, side)
        else:
            side = int(sides[1] > 0)
        rank = _walk(
            stream, trees[side], sides[side], code - sides[0] - 1 if side else sides[0] - code
        )
        out[row, column] = sides[0] + 1 + rank if side else sides[0] - rank
        above[column] = side + 1
        before = (row, column, side + 1)


def _walk(stream: BitStream, tree: list[AdaptiveBit], count: int, rank: int) -> int:
    """A rank from 0 to ``count`` - 1, highest bit first; a bit that cannot be one is not
    written.
    """
    found = 0
    for place in range((count - 1).bit_length() - 1, -1, -1):
        if (found << 1 | 1) << place < count:
            found = found << 1 | tree[1 << (count - 1).bit_length() - 1 - place | found].code(
                stream, rank >> place & 1
            )
        else:
            found <<= 1
    return found


def _block_by_block(
    stream: BitStream,
    matrix: Matrix,
    mask: Flags,
    sides: tuple[int, int],
    codes: Ints | None,
    out: Ints,
) -> None:
    """All values as one tree over the codes, a sixty-fourth of what was seen at a time, with
    chances from before the block.
    """
    depth = (sum(sides) - 1).bit_length()
    counts = np.ones((2, 1 << depth), np.int64)
    given = None if codes is None else codes[mask] - 1
    total, start, parts = int(mask.sum()), 0, []
    while start < total:
        size = min(max(start // 64, 1), total - start)
        node = np.ones(size, np.int64)
        for place in range(depth - 1, -1, -1):
            chances = np.clip(counts[1, node] * ONE // counts[:, node].sum(0), 1, ONE - 1)
            bits = stream.bits(
                chances, None if given is None else given[start : start + size] >> place & 1
            )
            np.add.at(counts, (bits, node), 2)
            node = node << 1 | bits
        parts.append(node - (1 << depth))
        start += size
    out[mask] = np.concatenate(parts) + 1
