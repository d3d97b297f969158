"""What a sampler is to the loop over moves: how all chains move at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

import torch
from torch import Tensor

from credo.core.records import Record
from credo.methods.sampling.parts.fitted_alongside import FittedAlongside

S = TypeVar("S", bound=Record)


class Moves(ABC, Generic[S]):
    """Moves of C chains at once.

    A state is a record (``core/records.py``) of all that the next move needs, so that a checkpoint
    is the state and what is fitted alongside. The info of a move is a record of diagnostics, per
    chain ``(C,)`` or for all ``()``, ``log_density`` among them. Random numbers come from
    ``source`` alone.
    """

    state_type: type[S]
    fitted_alongside: FittedAlongside

    @abstractmethod
    def start(self, position: Tensor, source: torch.Generator) -> S:
        """The state before the first move, of chains at ``position`` ``(C, P)``."""

    @abstractmethod
    def move(self, state: S, index: int, source: torch.Generator) -> tuple[S, Record]:
        """The state after move ``index``, and its info."""

    @abstractmethod
    def drawn(self, state: S) -> Tensor:
        """The positions ``(C, P)`` that are a draw of every chain."""
