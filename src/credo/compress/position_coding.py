"""The probability model of positions: which cells of a tensor are nonzero.

A tensor is a matrix with a row per output unit and a column per input of it. The number of nonzeros
in every column and every row comes first, so empty units cost next to nothing. A column's count is
learned together with those of similar columns: the same class of the unit it reads (a row of the
last matrix, whose outputs these inputs are), the same neighbour on the left. Then row by row: of L
columns that may have one of the n ones still to place in this row, column j has it with odds

    n w_j (L - 1) : (L - n) (sum of the other w),    w_j = k_j / (m - k_j)

for k_j ones still to place in the column within m rows: exact for n = 1, and for columns that are
alike. The odds are scaled by what was seen so far after a zero or a one on the left. Cells that can
only be one, or only zero, cost nothing.

Everything adapts bit by bit up to 2^20 cells between nonempty rows and columns. Beyond, a row is
coded at once with what was known before it, which costs a little more and is fast.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import pairwise
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray

from credo.compress.bit_stream import FAIR, ONE, AdaptiveInteger, BitStream
from credo.core.errors import RunError

_MOST_CELLS = 1 << 20
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
    found = _cells(stream, matrix, rows, columns, given, _CellByCell() if few else _WholeRow())
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


@final
@dataclass(frozen=True)
class _Row:
    """A row whose ``need`` ones are among the columns ``open``, which have the weights w; ``line``:
    the ones that are certain; ``wanted``: the row to write, None where it is read.
    """

    need: int
    open: NDArray[np.intp]
    weights: Ints
    line: Flags
    wanted: Flags | None


class _RowCoder(ABC):
    """How the open cells of a row are coded (abstract)."""

    @abstractmethod
    def code(self, stream: BitStream, matrix: Matrix, row: _Row) -> None:
        """Write or read the open cells, and set the ones in ``row.line``."""


def _cells(
    stream: BitStream,
    matrix: Matrix,
    rows: list[int],
    columns: list[int],
    mask: Flags | None,
    coder: _RowCoder,
) -> Flags:
    """Write or read the cells of a matrix with these numbers of ones in rows and columns."""
    found = np.zeros((matrix.rows, matrix.columns), bool)
    due, alive = np.array(columns, np.int64), [row for row, count in enumerate(rows) if count]
    for index, row in enumerate(alive):
        rows_left, line = len(alive) - index, found[row]
        line |= due >= rows_left
        need = rows[row] - int(line.sum())
        open_columns = np.flatnonzero((due > 0) & (due < rows_left))
        weights = _weights(due[open_columns], rows_left)
        wanted = None if mask is None else mask[row]
        coder.code(stream, matrix, _Row(need, open_columns, weights, line, wanted))
        due -= line
    return found


@final
class _CellByCell(_RowCoder):
    """Each cell by itself, with odds scaled by what was seen after a zero and after a one."""

    def __init__(self) -> None:
        # ones after a zero and after a one on the left, in 65536ths
        self.seen = [_INITIAL_ONES, _INITIAL_ONES]
        self.expected = [_INITIAL_ONES, _INITIAL_ONES]

    def code(self, stream: BitStream, matrix: Matrix, row: _Row) -> None:
        weights, need = row.weights.tolist(), row.need
        rest, left = sum(weights), len(weights)
        if not 0 <= need <= left:
            raise RunError(f"The file has {need} ones for {left} cells of a row. Write it again.")
        ones = set(np.flatnonzero(row.line).tolist())
        wanted = None if row.wanted is None else row.wanted.tolist()
        for column, weight in zip(row.open.tolist(), weights, strict=True):
            if need == 0:
                break
            if need == left:
                value = 1
            else:
                after = int(column % matrix.columns_per_unit > 0 and column - 1 in ones)
                share, other = need * weight * (left - 1), (left - need) * (rest - weight)
                plain = min(max(share * ONE // (share + other), 1), ONE - 1)
                up, down = plain * self.seen[after], (ONE - plain) * self.expected[after]
                chance = min(max(up * ONE // (up + down), 1), ONE - 1)
                value = stream.bit(chance, 0 if wanted is None else wanted[column])
                self.seen[after] += value * ONE
                self.expected[after] += plain
            rest, left = rest - weight, left - 1
            if value:
                need -= 1
                ones.add(column)
        row.line[list(ones)] = True


@final
class _WholeRow(_RowCoder):
    """All cells of a row at once, with what was known before it."""

    def code(self, stream: BitStream, matrix: Matrix, row: _Row) -> None:
        weights, need = row.weights, row.need
        if not need or not len(weights):
            return
        balance = max(len(weights) - need, 0) * _SHARE_STEPS // max(len(weights) - 1, 1)
        share = need * weights * _SHARE_STEPS
        chances = np.clip(
            share // np.maximum(share + balance * (weights.sum() - weights) >> 16, 1), 1, ONE - 1
        )
        wanted = None if row.wanted is None else row.wanted[row.open]
        row.line[row.open] = stream.bits(chances, wanted).astype(bool)
