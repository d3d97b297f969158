"""What the checks at the end of a fit look at, and what each of them is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from credo.core.errors import Finding
from credo.core.registry import Registry
from credo.engine.fit_job import FitJob, Problem
from credo.engine.method import Method
from credo.engine.model import Fitted, Model

ROWS = 1000  # of the training data, on which a doubtful fit is asked to predict


@dataclass(frozen=True)
class Case:
    """A finished fit: its model, method and result, and its job with history, data and N and P."""

    model: Model
    method: Method
    fitted: Fitted
    fit_job: FitJob

    @property
    def history(self) -> Sequence[Mapping[str, Any]]:
        """A row per epoch, or per draw."""
        return self.fit_job.history

    @property
    def problem(self) -> Problem:
        """N and P."""
        return self.fit_job.problem

    def column(self, *keys: str) -> list[float]:
        """Sums of these entries over the rows that have all of them."""
        return [sum(row[k] for k in keys) for row in self.history if all(k in row for k in keys)]


Check = Callable[[Case], Finding | None]


def new_checks() -> Registry[Check]:
    """No checks yet: name -> check, in the order in which findings are told."""
    return Registry("check of a fit")
