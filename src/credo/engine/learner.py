"""What a descent moves: a module of everything that is learned, and what the loop has to know of
it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from credo.core.seeds import generator
from credo.data.source import Source
from credo.engine.fit_job import FitJob, Fitted
from credo.engine.model import Model


class Learner(nn.Module, ABC):
    """Its state dict is what a checkpoint holds besides the optimizer's state."""

    @property
    @abstractmethod
    def model(self) -> Model:
        """The model, unregistered."""

    def batches(self, source: Source, fit_job: FitJob, epoch: int) -> Iterator[tuple[Any, Tensor]]:
        """One epoch of batches, in an order drawn from (seed, epoch) alone."""
        return source(generator(fit_job.seed, "order", epoch), fit_job.batch_size)

    def examples(self, y: Tensor) -> int:
        """How many examples a batch with these targets holds."""
        return len(y)

    def divergence(self) -> Tensor | None:
        """The KL as it stands, where steps do not compute it."""
        return None

    def monitor(self) -> dict[str, float]:
        """Numbers worth watching."""
        return {}

    def after_epoch(self, epoch: int, epochs: int) -> None:
        """Called after every epoch."""

    def after_fit(self) -> None:
        """Called after the last one."""

    @abstractmethod
    def fitted(self) -> Fitted:
        """The posterior as it stands."""
