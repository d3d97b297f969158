"""What one fit is given besides the model: data, length, seed, device, where to write, who
watches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from credo.data.source import Source
from credo.engine.run import Run
from credo.posteriors import Posterior

CHECKPOINT_SECONDS = 5.0  # how much work a killed run may lose

Callback = Callable[[dict[str, Any]], bool | None]


@dataclass
class FitJob:
    """The fit's own settings. ``history`` is filled as it goes; a callback gets each row and stops
    the fit by returning True.

    ``show`` is told what is fitted as it stands before callbacks get a row, by methods that can say
    so.
    """

    source: Source
    epochs: int
    batch_size: int | None
    lr: float
    seed: int = 0
    run: Run | None = None
    progress: bool = False
    callbacks: Sequence[Callback] = ()
    validation: Source | None = None
    validate: Callable[[Posterior, Mapping[str, Tensor]], float] | None = None
    show: Callable[[Fitted], None] | None = None
    checkpoint_seconds: float = field(default_factory=lambda: CHECKPOINT_SECONDS)
    history: list[dict[str, Any]] = field(default_factory=list)

    def note(self, row: dict[str, Any]) -> bool:
        """Add a row to the history, in memory and on disk; True if a callback asks to stop."""
        self.history.append(row)
        answers = [
            callback(row) for callback in self.callbacks
        ]  # all of them, even after one says stop
        if self.run is not None:
            self.run.record(row)
        return any(answers)


@dataclass(frozen=True)
class Fitted:
    """What a method returns: the posterior and the network's buffers as training left them."""

    posterior: Posterior
    buffers: Mapping[str, Tensor]

    def to(self, device: torch.device) -> Fitted:
        """There, and no longer learning."""
        return Fitted(
            self.posterior.to(device).requires_grad_(False),
            {n: b.to(device) for n, b in self.buffers.items()},
        )
