"""How many moves there are, and which of them give draws and rows of the history."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final


@dataclass(frozen=True)
class DrawSchedule(ABC):
    """``num_warmup`` moves, then those that ``num_draws`` draws of every chain take."""

    num_warmup: int
    num_draws: int

    @abstractmethod
    def num_moves(self) -> int:
        """Moves in all."""

    @abstractmethod
    def draw_after(self, index: int) -> int | None:
        """The number of the draw that is taken after move ``index``, if one is."""

    @abstractmethod
    def row_after(self, index: int) -> bool:
        """Whether move ``index`` makes a row of the history; every draw does."""

    @abstractmethod
    def row_number(self, index: int) -> int:
        """The number of the last row up to move ``index``."""


@final
@dataclass(frozen=True)
class SteadySchedule(DrawSchedule):
    """A draw after every ``thin`` moves, and rows of the warm-up at the same pace."""

    thin: int = 1

    def num_moves(self) -> int:
        return self.num_warmup + self.num_draws * self.thin

    def draw_after(self, index: int) -> int | None:
        draw, rest = divmod(index - self.num_warmup + 1, self.thin)
        return draw - 1 if draw >= 1 and rest == 0 else None

    def row_after(self, index: int) -> bool:
        return (index - self.num_warmup + 1) % self.thin == 0

    def row_number(self, index: int) -> int:
        return index


@final
@dataclass(frozen=True)
class CyclicalSchedule(DrawSchedule):
    """Draws in the last part of each of ``num_cycles`` cycles, after a share of ``exploration``."""

    thin: int = 1
    num_cycles: int = 1
    exploration: float = 0.0

    @property
    def sampling(self) -> int:
        """Moves of a cycle that give draws."""
        return self.num_draws // self.num_cycles * self.thin

    @property
    def period(self) -> int:
        """Moves of a cycle."""
        return math.ceil(round(self.sampling / (1 - self.exploration), 6))

    def num_moves(self) -> int:
        return self.num_warmup + self.num_cycles * self.period

    def samples(self, index: int) -> bool:
        """Whether move ``index`` belongs to the sampling part of a cycle."""
        place = index - self.num_warmup
        return place >= 0 and place % self.period >= self.period - self.sampling

    def draw_after(self, index: int) -> int | None:
        cycle, place = divmod(index - self.num_warmup, self.period)
        draw, rest = divmod(place - (self.period - self.sampling) + 1, self.thin)
        return (
            cycle * (self.num_draws // self.num_cycles) + draw - 1
            if self.samples(index) and rest == 0
            else None
        )

    def row_after(self, index: int) -> bool:
        return self.draw_after(index) is not None or (
            not self.samples(index) and (index + 1) % self.thin == 0
        )

    def row_number(self, index: int) -> int:
        return index


@final
@dataclass(frozen=True)
class EpochSchedule(DrawSchedule):
    """One draw, with the last of ``num_warmup`` + 1 moves; a row after every epoch of
    ``num_batches`` moves.
    """

    num_batches: int = 1

    def num_moves(self) -> int:
        return self.num_warmup + 1

    def draw_after(self, index: int) -> int | None:
        """At the end of every epoch, so that a callback may stop there; the last one counts."""
        return 0 if self.row_after(index) else None

    def row_after(self, index: int) -> bool:
        return (index + 1) % self.num_batches == 0

    def row_number(self, index: int) -> int:
        """Epochs, not moves."""
        return (index + 1) // self.num_batches - 1
