"""The probability models of a quantised network: where its nonzero weights are, and which of their
tensor's values they take.

*Positions.* A tensor is a matrix with a row per output unit and a column per input of it. The
number of nonzeros in every column and every row comes first, so empty units cost next to nothing. A
column's count is learned together with those of similar columns: the same class of the unit it
reads (a row of the last matrix, whose outputs these inputs are), the same neighbour on the left.
Then row by row: of L columns that may have one of the n ones still to place in this row, column j
has it with odds

    n w_j (L - 1) : (L - n) (sum of the other w),    w_j = k_j / (m - k_j)

for k_j ones still to place in the column within m rows: exact for n = 1, and for columns that are
alike. The odds are scaled by what was seen so far after a zero or a one on the left. Cells that can
only be one, or only zero, cost nothing.

*Values.* Sign, learned by the sign on the left or else the last one above, then distance from zero
among the book's values of that sign, bit by bit in a tree.

Everything adapts bit by bit up to 2^20 cells between nonempty rows and columns, and 2^18 nonzeros.
Beyond, a row, or a growing block of values, is coded at once with what was known before it, which
costs a little more and is fast.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from credo.compress.bit_stream import FAIR, ONE, AdaptiveBit, AdaptiveInteger, BitStream, BitWriter
from credo.compress.codebooks import Codebooks, raw
from credo.compress.quantised import Coded, Entry, Quantised, Raw
from credo.core.errors import RunError

_MOST_CELLS = 1 << 20
_MOST_VALUES = 1 << 18
_INITIAL_ONES = 2 * ONE  # how many ones, seen and expected, a context's scale starts from
_WEIGHT_BITS = 20  # after the point of a column's weight
# largest weight of a column, so that sums and products over 2^20 columns stay below 2^63
_MAX_WEIGHT = 1 << 28
_SHARE_STEPS = 1 << 12  # of the share of columns without a one, where a whole row is coded at once

Flags = NDArray[np.bool_]
Ints = NDArray[np.int64]


@final
@dataclass(frozen=True)
class Matrix:
    """A tensor's shape as rows and columns; every ``columns_per_unit`` columns read one unit.

    ``unit_counts``: the units' numbers of nonzeros in the matrix before, if known.
    """

    rows: int
    columns: int
    columns_per_unit: int
    unit_counts: tuple[int, ...] = ()

    @classmethod
    def of(cls, shape: torch.Size, unit_counts: tuple[int, ...]) -> Matrix:
        """Rows are the first axis; a vector is one row.

        Parents count where the columns are a multiple of them.
        """
        rows = shape[0] if len(shape) > 1 else 1
        columns = shape.numel() // max(rows, 1)
        if unit_counts and columns and columns % len(unit_counts) == 0:
            return cls(rows, columns, columns // len(unit_counts), unit_counts)
        return cls(rows, columns, max(shape[2:].numel() if len(shape) > 2 else columns, 1))

    def unit_class(self, column: int) -> int:
        """A class of the unit that a column reads, by its nonzeros: none (0), one or two (1), up to
        five (2), more (3); -1 where they are not known.
        """
        if not self.unit_counts:
            return -1
        count = self.unit_counts[column // self.columns_per_unit]
        return (count > 0) + (count > 2) + (count > 5)


def code_positions(stream: BitStream, matrix: Matrix, mask: Flags | None = None) -> Flags:
    """Write or read which cells are nonzero, ``(rows, columns)``; where most are, the zeros are
    coded instead.
    """
    if matrix.rows * matrix.columns == 0:
        return np.zeros((matrix.rows, matrix.columns), bool)
    flipped = stream.bit(ONE // 16, 0 if mask is None else int(2 * mask.sum() > mask.size))
    given = mask if mask is None or not flipped else ~mask
    columns = _column_counts(stream, matrix, None if given is None else given.sum(0).tolist())
    rows = _row_counts(
        stream, matrix, sum(columns), None if given is None else given.sum(1).tolist()
    )
    if max(columns) > matrix.rows or min(rows) < 0 or max(rows) > matrix.columns:
        raise RunError(
            f"The file counts more nonzeros than a matrix of {matrix.rows} x {matrix.columns} "
            "holds. Write it again."
        )
    few = sum(map(bool, rows)) * sum(map(bool, columns)) <= _MOST_CELLS
    found = (_cell_by_cell if few else _row_by_row)(stream, matrix, rows, columns, given)
    return ~found if flipped else found


def _column_counts(stream: BitStream, matrix: Matrix, counts: list[int] | None) -> list[int]:
    numbers, out = AdaptiveInteger(), []
    for column in range(matrix.columns):
        left = (out[-1] > 0) if column % matrix.columns_per_unit else -1
        out.append(
            numbers.code(
                stream, (matrix.unit_class(column), left), 0 if counts is None else counts[column]
            )
        )
    return out


def _row_counts(
    stream: BitStream, matrix: Matrix, total: int, counts: list[int] | None
) -> list[int]:
    """Counts of all rows but the last, which gets the rest; once all ones are placed nothing more
    is written.

    Where rows come fullest first, as after sorting the units of a layer, only the drops from row to
    row are written.
    """
    if matrix.rows == 1 or total == 0:
        return [total] + [0] * (matrix.rows - 1)
    falling = stream.bit(
        FAIR, 0 if counts is None else int(all(b <= a for a, b in pairwise(counts)))
    )
    numbers, out = AdaptiveInteger(), []
    for row in range(matrix.rows - 1):
        below = out[-1] if falling and out else None
        given = 0 if counts is None else counts[row]
        number = (
            numbers.code(stream, below is None, given if below is None else below - given)
            if total
            else 0
        )
        out.append(number if below is None or not total else below - number)
        total -= out[-1]
    return [*out, total]


def _weights(due: Ints, rows_left: int) -> Ints:
    """w = due / (rows left - due) with 20 bits after the point, at least the smallest step. A
    column in which every row left must have a one is not coded, so its w does not matter.
    """
    return np.clip((due << _WEIGHT_BITS) // np.maximum(rows_left - due, 1), 1, _MAX_WEIGHT)


def _cell_by_cell(
    stream: BitStream, matrix: Matrix, rows: list[int], columns: list[int], mask: Flags | None
) -> Flags:
    found = np.zeros((matrix.rows, matrix.columns), bool)
    due, alive = np.array(columns, np.int64), [row for row, count in enumerate(rows) if count]
    seen, expected = (
        [_INITIAL_ONES, _INITIAL_ONES],
        [_INITIAL_ONES, _INITIAL_ONES],
    )  # ones after a zero and after a one on the left, in 65536ths
    for index, row in enumerate(alive):
        rows_left, line = len(alive) - index, found[row]
        line |= due >= rows_left
        need = rows[row] - int(line.sum())
        open_columns = np.flatnonzero((due > 0) & (due < rows_left))
        weights = _weights(due[open_columns], rows_left).tolist()
        rest, left = sum(weights), len(weights)
        if not 0 <= need <= left:
            raise RunError(
                f"The file has {need} ones for {left} cells of row {row}. Write it again."
            )
        ones = set(np.flatnonzero(line).tolist())
        wanted = None if mask is None else mask[row].tolist()
        for column, weight in zip(open_columns.tolist(), weights, strict=True):
            if need == 0:
                break
            if need == left:
                value = 1
            else:
                after = int(column % matrix.columns_per_unit > 0 and column - 1 in ones)
                share, other = need * weight * (left - 1), (left - need) * (rest - weight)
                plain = min(max(share * ONE // (share + other), 1), ONE - 1)
                up, down = plain * seen[after], (ONE - plain) * expected[after]
                chance = min(max(up * ONE // (up + down), 1), ONE - 1)
                value = stream.bit(chance, 0 if wanted is None else wanted[column])
                seen[after] += value * ONE
                expected[after] += plain
            rest, left = rest - weight, left - 1
            if value:
                need -= 1
                ones.add(column)
        line[list(ones)] = True
        due -= line
    return found


def _row_by_row(
    stream: BitStream, matrix: Matrix, rows: list[int], columns: list[int], mask: Flags | None
) -> Flags:
    found = np.zeros((matrix.rows, matrix.columns), bool)
    due, alive = np.array(columns, np.int64), [row for row, count in enumerate(rows) if count]
    for index, row in enumerate(alive):
        rows_left, line = len(alive) - index, found[row]
        line |= due >= rows_left
        open_columns = np.flatnonzero((due > 0) & (due < rows_left))
        need = rows[row] - int(line.sum())
        if need and len(open_columns):
            weights = _weights(due[open_columns], rows_left)
            balance = max(len(weights) - need, 0) * _SHARE_STEPS // max(len(weights) - 1, 1)
            share = need * weights * _SHARE_STEPS
            chances = np.clip(
                share // np.maximum(share + balance * (weights.sum() - weights) >> 16, 1),
                1,
                ONE - 1,
            )
            line[open_columns] = stream.bits(
                chances, None if mask is None else mask[row][open_columns]
            ).astype(bool)
        due -= line
    return found


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


@final
@dataclass(frozen=True)
class TensorBits:
    """Bits that one tensor takes in a file, by what they describe; ``raw``: a tensor stored as it
    is.
    """

    numel: int
    nonzero: int
    positions: float = 0.0
    values: float = 0.0
    book: float = 0.0
    raw: float = 0.0

    @property
    def bits(self) -> float:
        """Of the tensor in all."""
        return self.positions + self.values + self.book + self.raw


def code_network(
    stream: BitStream,
    like: Mapping[str, Tensor],
    given: Quantised | None = None,
    mark: Callable[[str, str], Any] = lambda *_: None,
) -> Quantised:
    """Write or read all entries of a network whose state dict is ``like``; ``mark(name, part)`` is
    called after each part of an entry.
    """
    kind, codebooks, unit_counts = AdaptiveBit(), Codebooks(), ()
    out: dict[str, Entry] = {}
    for name, tensor in like.items():
        entry = None if given is None else given[name]
        if kind.code(stream, int(isinstance(entry, Raw))):
            out[name] = Raw(raw(stream, tensor, entry.values if isinstance(entry, Raw) else None))
            mark(name, "raw")
            continue
        coded = entry if isinstance(entry, Coded) else None
        book = codebooks.code(stream, None if coded is None else coded.book.double().numpy())
        mark(name, "book")
        matrix = Matrix.of(tensor.shape, unit_counts)
        shape = (matrix.rows, matrix.columns)
        codes = None if coded is None else coded.codes.numpy().reshape(shape).astype(np.int64)
        if len(book):
            mask = code_positions(stream, matrix, None if codes is None else codes > 0)
        else:
            mask = np.zeros(shape, bool)
        mark(name, "positions")
        codes = code_values(stream, matrix, mask, book, codes)
        mark(name, "values")
        out[name] = Coded(
            torch.from_numpy(codes.astype(np.int32)).reshape(tensor.shape),
            torch.from_numpy(book.astype(np.float32)),
        )
        if tensor.dim() > 1:
            unit_counts = tuple(mask.sum(1).tolist())
    return Quantised(out)


def write_entries(quantised: Quantised, writer: BitWriter) -> dict[str, TensorBits]:
    """Write all entries after what ``writer`` has already; returns the bits of each tensor."""
    parts: dict[str, dict[str, float]] = {name: {} for name in quantised}
    at = len(writer)

    def mark(name: str, part: str) -> None:
        nonlocal at
        parts[name][part] = writer.length(at)
        at = len(writer)

    code_network(writer, quantised.state(), quantised, mark)
    return {
        n: TensorBits(quantised[n].numel, quantised[n].nonzero, **part) for n, part in parts.items()
    }


def code_length(quantised: Quantised) -> float:
    """Bits of the codes, books and raw tensors by the models' own probabilities: the sum of -log2
    p.
    """
    writer = BitWriter()
    write_entries(quantised, writer)
    return writer.length()
