"""Draws divided into cells, consecutive draws of one chain each, so that distances of any union of
cells are quick to compute.

Draws are averaged once per cell; averages over a union of cells are weighted means of those.
Leaving out one cell after another gives standard errors that allow for the autocorrelation of
chains (jackknife over blocks); half of the chains against the other half shows what chance alone
does.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor

from credo.core.seeds import generator

BLOCKS = 10  # least number of cells, where there are as many draws
SPLITS = 10  # most ways of halving the chains
LISTED = 10_000  # ways of which SPLITS are picked evenly; where there are more they are drawn


class Cells(NamedTuple):
    """Which cell each draw is in ``(S,)``, and which chain each cell is of ``(B,)``."""

    of_draw: Tensor
    chain: Tensor


class Moments(NamedTuple):
    """Per cell, first and second moments ``(B, R, K)`` about a common centre ``(R, K)``: R rows, K
    columns with units of their own.
    """

    centre: Tensor
    first: Tensor
    second: Tensor


@final
class DrawSet:
    """One set of S draws, averaged cell by cell.

    Per draw, ``(S, R, K)`` each: ``functions``, whose deviations are compared, ``compared``, whose
    distributions are compared, and ``means`` of y. Per cell, ``(B, ...)``: ``table``, probabilities
    of y, and ``scores``, which depend on targets (except for the labels there, which have no
    cells).
    """

    def __init__(
        self,
        cells: Cells,
        functions: Tensor,
        compared: Tensor,
        means: Tensor,
        table: Tensor,
        scores: dict[str, Tensor],
    ) -> None:
        self.cells, self.table, self.scores = cells, table, scores
        self.count = torch.bincount(cells.of_draw).to(table.dtype)
        self.functions, self.compared, self.means = (
            _moments(values, self.average) for values in (functions, compared, means)
        )
        flat = compared.flatten(1).mT.contiguous()
        self.sorted, order = flat.sort(-1)
        self.place = cells.of_draw[order]

    def average(self, draws: Tensor) -> Tensor:
        """Cell means ``(B, ...)`` of numbers per draw ``(S, ...)``."""
        return cell_means(draws, self.cells.of_draw)

    @property
    def varies(self) -> bool:
        """Whether any of the compared numbers differs between draws."""
        return bool((self.compared.second > 0).any())

    def subset(self, keep: Tensor | None = None) -> DrawSubset:
        """The union of the cells in the mask ``keep (B,)``; all by default."""
        return DrawSubset(
            self, torch.ones_like(self.cells.chain, dtype=torch.bool) if keep is None else keep
        )

    def without_each(self) -> list[DrawSubset]:
        """All but one cell, for every cell; nothing where there is only one."""
        size = len(self.count)
        return (
            [
                self.subset(torch.arange(size, device=self.count.device) != out)
                for out in range(size)
            ]
            if size > 1
            else []
        )

    def halves(self) -> list[tuple[DrawSubset, DrawSubset]]:
        """Half of the chains and the other half, for up to 10 ways of halving
        (:func:`halvings`).
        """
        chain = self.cells.chain
        first = [
            torch.isin(chain, torch.tensor(way, device=chain.device))
            for way in halvings(int(chain.max()) + 1)
        ]
        return [(self.subset(half), self.subset(~half)) for half in first]


@final
class DrawSubset:
    """Some cells of a :class:`DrawSet` as one set of draws."""

    def __init__(self, whole: DrawSet, keep: Tensor) -> None:
        self.whole, self.keep = whole, keep
        self.weight = torch.where(keep, whole.count, 0.0) / whole.count[keep].sum()

    def average(self, cells: Tensor) -> Tensor:
        """Mean over draws from cell means ``(B, ...)``."""
        return torch.tensordot(self.weight, cells, dims=1)

    def moments(self, of: Moments) -> tuple[Tensor, Tensor]:
        """Mean and variance over draws, each ``(R, K)``."""
        shift = self.average(of.first)
        return of.centre + shift, (self.average(of.second) - shift.square()).clamp_min(0.0)

    def sorted(self) -> Tensor:
        """Every scalar's draws in order, ``(R K, S')``."""
        values = self.whole.sorted
        return (
            values
            if bool(self.keep.all())
            else values[self.keep[self.whole.place]].reshape(len(values), -1)
        )

    def log_prob(self) -> Tensor:
        """log (1/S) sum_s p_s(y), ``(N,)``, from the cells' values."""
        return torch.logsumexp(self.whole.scores["log_prob"] + self.weight.log().unsqueeze(-1), 0)


def cell_means(draws: Tensor, of_draw: Tensor) -> Tensor:
    """Means ``(B, ...)`` of ``(S, ...)`` over the draws of every cell."""
    size = int(of_draw.max()) + 1
    sums = draws.new_zeros(size, *draws.shape[1:]).index_add_(0, of_draw, draws)
    return sums / torch.bincount(of_draw, minlength=size).reshape(-1, *(1,) * (draws.dim() - 1))


def _moments(values: Tensor, average: Callable[[Tensor], Tensor]) -> Moments:
    centre = values.mean(0)
    gap = values - centre
    return Moments(centre, average(gap), average(gap.square()))


def cells(draws: int, chains: int, device: torch.device | str = "cpu") -> Cells:
    """Cells of equal numbers of consecutive draws, at least 10 in all where draws suffice; a single
    chain counts as four, one after another.
    """
    length = draws // chains
    each = (
        min(math.ceil(BLOCKS / chains), length)
        if chains > 1
        else min(4 * math.ceil(BLOCKS / 4), draws)
    )
    place = torch.arange(draws, device=device)
    of_draw = place // length * each + place % length * each // length
    cell = torch.arange(each * chains, device=device)
    return Cells(of_draw, cell // each if chains > 1 else cell * min(4, each) // each)


def jackknife(values: Sequence[dict[str, float]]) -> dict[str, float]:
    """Standard errors from what each of b deletions leaves: sqrt((b - 1) / b sum_i (v_i - mean)^2);
    empty without deletions.
    """
    count = len(values)
    if not count:
        return {}
    out = {}
    for key in values[0]:
        column = torch.tensor([value[key] for value in values], dtype=torch.float64)
        out[key] = math.sqrt((count - 1) * float(column.var(correction=0)))
    return out


def halvings(chains: int) -> list[tuple[int, ...]]:
    """Which chains make the first half, for up to 10 ways of halving; a half and its complement are
    one way.
    """
    half = chains // 2
    if (
        math.comb(chains, half) > LISTED
    ):  # two of ten draws that are the same way have become unlikely
        orders = [
            torch.randperm(chains, generator=generator("halvings", chains, way))
            for way in range(SPLITS)
        ]
        return [tuple(sorted(order[:half].tolist())) for order in orders]
    ways = [way for way in itertools.combinations(range(chains), half) if chains % 2 or 0 in way]
    count = min(len(ways), SPLITS)
    return [ways[i * len(ways) // count] for i in range(count)]
