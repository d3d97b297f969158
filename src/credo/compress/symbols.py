"""The probability models of a quantised network: where its nonzero weights are, and which of their
tensor's values they take.

*Positions.* A tensor is a matrix with a row per output unit and a column per input of it. Written
first is how many nonzeros every column and every row has, so empty units cost next to nothing. A
column's count is learned together with those of columns that look alike: same standing of the unit
it continues (a row of the last matrix, whose outputs these inputs are), same neighbour on the left.
Then row by row: of L columns that may have one of the n ones still due in this row, column j has it
with odds

    n w_j (L - 1) : (L - n) (sum of the other w),    w_j = k_j / (m - k_j)

for k_j ones still due in the column within m rows: exact for n = 1, and for columns that are alike.
The odds are scaled by what was seen so far after a zero or a one on the left. Cells that can only
be one or only zero cost nothing.

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

from credo.compress.books import Books, raw
from credo.compress.quantised import Coded, Entry, Quantised, Raw
from credo.compress.stream import FAIR, ONE, Bit, Port, Recorder, Whole
from credo.core.errors import RunError

_MOST_CELLS = 1 << 20
_MOST_VALUES = 1 << 18
_TRUST = 2 * ONE  # how many ones, seen and expected, a context's scale starts from
_FINE = 20  # bits after the point of a column's weight
_HEAVIEST = (
    1 << 28
)  # a column's weight, so that sums and products over 2^20 columns stay below 2^63
_COARSE = 1 << 12  # steps of the share of columns without a one, where a whole row is coded at once

Flags = NDArray[np.bool_]
Ints = NDArray[np.int64]


@final
@dataclass(frozen=True)
class Matrix:
    """A tensor's shape as rows and columns; ``group`` columns in a row belong to one unit.

    ``parents`` are the units' counts of nonzeros in the matrix before, if known.
    """

    rows: int
    columns: int
    group: int
    parents: tuple[int, ...] = ()

    @classmethod
    def of(cls, shape: torch.Size, parents: tuple[int, ...]) -> Matrix:
        """Rows are the first axis; a vector is one row.

        Parents count where the columns are a multiple of them.
        """
        rows = shape[0] if len(shape) > 1 else 1
        columns = shape.numel() // max(rows, 1)
        if parents and columns and columns % len(parents) == 0:
            return cls(rows, columns, columns // len(parents), parents)
        return cls(rows, columns, max(shape[2:].numel() if len(shape) > 2 else columns, 1))

    def standing(self, column: int) -> int:
        """What is known of the unit a column continues: its nonzeros, none, one or two, up to five,
        or more; -1 where nothing is.
        """
        if not self.parents:
            return -1
        count = self.parents[column // self.group]
        return (count > 0) + (count > 2) + (count > 5)


def positions(port: Port, matrix: Matrix, mask: Flags | None = None) -> Flags:
    """Which cells are nonzero ``(rows, columns)``. Where most are, the zeros are written
    instead.
    """
    if matrix.rows * matrix.columns == 0:
        return np.zeros((matrix.rows, matrix.columns), bool)
    flipped = port.bit(ONE // 16, 0 if mask is None else int(2 * mask.sum() > mask.size))
    given = mask if mask is None or not flipped else ~mask
    columns = _column_counts(port, matrix, None if given is None else given.sum(0).tolist())
    rows = _row_counts(port, matrix, sum(columns), None if given is None else given.sum(1).tolist())
    if max(columns) > matrix.rows or min(rows) < 0 or max(rows) > matrix.columns:
        raise RunError(
            f"The file counts more nonzeros than a matrix of {matrix.rows} x {matrix.columns} "
            "holds. Write it again."
        )
    small = sum(map(bool, rows)) * sum(map(bool, columns)) <= _MOST_CELLS
    found = (_cell_by_cell if small else _row_by_row)(port, matrix, rows, columns, given)
    return ~found if flipped else found


def _column_counts(port: Port, matrix: Matrix, counts: list[int] | None) -> list[int]:
    numbers, out = Whole(), []
    for column in range(matrix.columns):
        left = (out[-1] > 0) if column % matrix.group else -1
        out.append(
            numbers.code(
                port, (matrix.standing(column), left), 0 if counts is None else counts[column]
            )
        )
    return out


def _row_counts(port: Port, matrix: Matrix, total: int, counts: list[int] | None) -> list[int]:
    """Counts of all rows but the last, which gets the rest; once all ones are placed nothing more
    is written.

    Where rows come fullest first, as after sorting the units of a layer, only the drops from row to
    row are written.
    """
    if matrix.rows == 1 or total == 0:
        return [total] + [0] * (matrix.rows - 1)
    falling = port.bit(FAIR, 0 if counts is None else int(all(b <= a for a, b in pairwise(counts))))
    numbers, out = Whole(), []
    for row in range(matrix.rows - 1):
        below = out[-1] if falling and out else None
        given = 0 if counts is None else counts[row]
        number = (
            numbers.code(port, below is None, given if below is None else below - given)
            if total
            else 0
        )
        out.append(number if below is None or not total else below - number)
        total -= out[-1]
    return [*out, total]


def _weights(due: Ints, rows_left: int) -> Ints:
    """w = due / (rows left - due) with 20 bits after the point, at least the smallest step; where
    every row left must have a one, no matter.
    """
    return np.clip((due << _FINE) // np.maximum(rows_left - due, 1), 1, _HEAVIEST)


def _cell_by_cell(
    port: Port, matrix: Matrix, rows: list[int], columns: list[int], mask: Flags | None
) -> Flags:
    found = np.zeros((matrix.rows, matrix.columns), bool)
    due, alive = np.array(columns, np.int64), [row for row, count in enumerate(rows) if count]
    seen, expected = (
        [_TRUST, _TRUST],
        [_TRUST, _TRUST],
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
                after = int(column % matrix.group > 0 and column - 1 in ones)
                share, other = need * weight * (left - 1), (left - need) * (rest - weight)
                plain = min(max(share * ONE // (share + other), 1), ONE - 1)
                up, down = plain * seen[after], (ONE - plain) * expected[after]
                chance = min(max(up * ONE // (up + down), 1), ONE - 1)
                value = port.bit(chance, 0 if wanted is None else wanted[column])
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
    port: Port, matrix: Matrix, rows: list[int], columns: list[int], mask: Flags | None
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
            balance = max(len(weights) - need, 0) * _COARSE // max(len(weights) - 1, 1)
            share = need * weights * _COARSE
            chances = np.clip(
                share // np.maximum(share + balance * (weights.sum() - weights) >> 16, 1),
                1,
                ONE - 1,
            )
            line[open_columns] = port.bits(
                chances, None if mask is None else mask[row][open_columns]
            ).astype(bool)
        due -= line
    return found


def levels(
    port: Port, matrix: Matrix, mask: Flags, book: NDArray[np.float64], codes: Ints | None = None
) -> Ints:
    """Codes ``(rows, columns)`` from 1 to K where ``mask`` is True, 0 elsewhere."""
    out = np.zeros(mask.shape, np.int64)
    if len(book) < 2:
        out[mask] = len(book)
        return out
    split = int((book < 0).sum())
    sides = (split, len(book) - split)  # how many values are negative, how many positive
    one_by_one = int(mask.sum()) <= _MOST_VALUES
    (_one_by_one if one_by_one else _block_by_block)(port, matrix, mask, sides, codes, out)
    return out


def _one_by_one(
    port: Port, matrix: Matrix, mask: Flags, sides: tuple[int, int], codes: Ints | None, out: Ints
) -> None:
    signs = [Bit() for _ in range(5)]
    trees = {
        side: [Bit() for _ in range(2 << max(count - 1, 0).bit_length())]
        for side, count in enumerate(sides)
    }
    above = [0] * matrix.columns
    before = (-1, -1, 0)
    for row, column in np.argwhere(mask).tolist():
        touching = before[:2] == (row, column - 1) and column % matrix.group > 0
        context = before[2] if touching else 3 * bool(above[column]) + max(above[column] - 1, 0)
        code = 0 if codes is None else int(codes[row, column])
        side = int(code > sides[0])
        if sides[0] and sides[1]:
            side = signs[context].code(port, side)
        else:
            side = int(sides[1] > 0)
        rank = _walk(
            port, trees[side], sides[side], code - sides[0] - 1 if side else sides[0] - code
        )
        out[row, column] = sides[0] + 1 + rank if side else sides[0] - rank
        above[column] = side + 1
        before = (row, column, side + 1)


def _walk(port: Port, tree: list[Bit], count: int, rank: int) -> int:
    """A rank from 0 to ``count`` - 1, highest bit first; a bit that cannot be one is not
    written.
    """
    found = 0
    for place in range((count - 1).bit_length() - 1, -1, -1):
        if (found << 1 | 1) << place < count:
            found = found << 1 | tree[1 << (count - 1).bit_length() - 1 - place | found].code(
                port, rank >> place & 1
            )
        else:
            found <<= 1
    return found


def _block_by_block(
    port: Port, matrix: Matrix, mask: Flags, sides: tuple[int, int], codes: Ints | None, out: Ints
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
            bits = port.bits(
                chances, None if given is None else given[start : start + size] >> place & 1
            )
            np.add.at(counts, (bits, node), 2)
            node = node << 1 | bits
        parts.append(node - (1 << depth))
        start += size
    out[mask] = np.concatenate(parts) + 1


@final
@dataclass(frozen=True)
class Cost:
    """Bits of one tensor in a file, by what they say; ``raw`` is a tensor stored as it is."""

    numel: int
    nonzero: int
    positions: float = 0.0
    values: float = 0.0
    book: float = 0.0
    raw: float = 0.0

    @property
    def bits(self) -> float:
        """All of them."""
        return self.positions + self.values + self.book + self.raw


def network(
    port: Port,
    like: Mapping[str, Tensor],
    given: Quantised | None = None,
    mark: Callable[[str, str], Any] = lambda *_: None,
) -> Quantised:
    """Write or read all entries of a network whose state dict is ``like``; ``mark(name, part)`` is
    called after each part of an entry.
    """
    kind, books, parents = Bit(), Books(), ()
    out: dict[str, Entry] = {}
    for name, tensor in like.items():
        entry = None if given is None else given[name]
        if kind.code(port, int(isinstance(entry, Raw))):
            out[name] = Raw(raw(port, tensor, entry.values if isinstance(entry, Raw) else None))
            mark(name, "raw")
            continue
        coded = entry if isinstance(entry, Coded) else None
        book = books.code(port, None if coded is None else coded.book.double().numpy())
        mark(name, "book")
        matrix = Matrix.of(tensor.shape, parents)
        shape = (matrix.rows, matrix.columns)
        codes = None if coded is None else coded.codes.numpy().reshape(shape).astype(np.int64)
        if len(book):
            mask = positions(port, matrix, None if codes is None else codes > 0)
        else:
            mask = np.zeros(shape, bool)
        mark(name, "positions")
        codes = levels(port, matrix, mask, book, codes)
        mark(name, "values")
        out[name] = Coded(
            torch.from_numpy(codes.astype(np.int32)).reshape(tensor.shape),
            torch.from_numpy(book.astype(np.float32)),
        )
        if tensor.dim() > 1:
            parents = tuple(mask.sum(1).tolist())
    return Quantised(out)


def record(quantised: Quantised, recorder: Recorder) -> tuple[Recorder, dict[str, Cost]]:
    """Everything a file says of these codes, noted after what ``recorder`` holds already, and what
    each tensor costs.
    """
    parts: dict[str, dict[str, float]] = {name: {} for name in quantised}
    at = len(recorder)

    def mark(name: str, part: str) -> None:
        nonlocal at
        parts[name][part] = recorder.length(at)
        at = len(recorder)

    network(recorder, quantised.state(), quantised, mark)
    return recorder, {
        n: Cost(quantised[n].numel, quantised[n].nonzero, **part) for n, part in parts.items()
    }


def code_length(quantised: Quantised) -> float:
    """Bits of the codes, books and raw tensors by the models' own probabilities: the sum of -log2
    p.
    """
    return record(quantised, Recorder())[0].length()
