"""A way to fit a method to a UCI regression set: its network, likelihood, prior and budget.

Steps are those for a thousand examples; they grow with the root of their number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

from credo.likelihoods import Gaussian, Likelihood
from credo.priors import FanIn, Prior

BATCH = 512  # examples in a step of descent, all of a small set


USUAL = 1000  # examples for which steps are stated


LENGTHS = (
    "num_warmup",
    "num_draws",
    "num_moves",
    "num_proposals",
)  # settings that ``effort`` scales besides the steps


@final
@dataclass(frozen=True)
class Start:
    """A fit from whose posterior chains start: its mean for all of them, or with ``drawn`` a draw
    for each.

    ``widen`` multiplies the learned noise before the chains take it over: they come to the right
    one from above, where they move freely.
    """

    method: str
    steps: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    drawn: bool = False
    widen: float = 1.0

    def config(self) -> dict[str, Any]:
        """As plain values, under the names that stored cells are found by."""
        values = {**vars(self), "settings": dict(self.settings)}
        return {{"drawn": "apart"}.get(name, name): value for name, value in values.items()}


@final
@dataclass(frozen=True)
class Candidate:
    """One way to fit a method: network, likelihood, prior, and arguments of ``BNN.fit``.

    ``steps``: of descent, for a thousand examples, but ``least`` so many epochs.
    """

    label: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    activation: str = "relu"
    likelihood: Likelihood = field(default_factory=lambda: Gaussian(initial_std=0.5))
    prior: Prior = field(default_factory=lambda: FanIn(2.0))
    steps: int | None = None
    least: int = 1
    batch: int | None = BATCH
    samples: int = 200
    start: Start | None = None

    def config(self) -> dict[str, Any]:
        """Everything that matters, as plain values."""
        start = None if self.start is None else self.start.config()
        return {
            "label": self.label,
            "settings": {
                k: v.config() if isinstance(v, Prior) else v for k, v in self.settings.items()
            },
            "activation": self.activation,
            "likelihood": [self.likelihood.name, self.likelihood.config()],
            "prior": self.prior.describe(),
            "steps": self.steps,
            "least": self.least,
            "batch": self.batch,
            "samples": self.samples,
            "start": start,
        }

    def arguments(self, num_data: int, effort: float) -> dict[str, Any]:
        """Arguments of ``BNN.fit`` for this many examples; ``effort`` scales whatever takes
        time.
        """
        given: dict[str, Any] = {**self.settings, "batch_size": self.batch}
        for key in LENGTHS:
            if key in given:
                given[key] = max(4, round(effort * given[key]))
        if "num_draws" in given:  # cycles share them out
            given["num_draws"] += -given["num_draws"] % given.get("num_cycles", 1)
        if self.steps is not None:
            given["epochs"] = max(self.least, epochs(self.steps, num_data, self.batch, effort))
        return given


@final
@dataclass(frozen=True)
class Recipe:
    """Candidates of a method. ``trial``: the share of their steps that a candidate gets while it is
    compared with the others.
    """

    candidates: tuple[Candidate, ...]
    trial: float = 1.0

    def config(self) -> dict[str, Any]:
        """Everything that matters, as plain values."""
        return {
            "candidates": [candidate.config() for candidate in self.candidates],
            "trial": self.trial,
        }


def epochs(steps: int, num_data: int, batch: int | None, effort: float) -> int:
    """Passes over the data that make up ``steps`` times sqrt(N / 1000), or ``steps`` for fewer
    data.
    """
    wanted = effort * steps * math.sqrt(max(1.0, num_data / USUAL))
    return max(1, round(wanted / math.ceil(num_data / min(batch or num_data, num_data))))
