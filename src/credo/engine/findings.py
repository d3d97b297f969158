"""What the checks at the end of a fit look at, and what each of them is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from credo.core.errors import Finding
from credo.core.registry import Registry
from credo.core.tree import take
from credo.engine.fit_job import FitJob, Problem
from credo.engine.method import Method
from credo.engine.model import Fitted, Model
from credo.engine.validation import predicted
from credo.predictive import Predictive

ROWS, FEW = 1000, 64  # of the training data, on which a fit is asked to predict
PRODUCTS = 2e9  # of weights, rows and draws that this may take, unless FEW rows take more
DRAWS = 16  # of the posterior, that predict


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

    @cached_property
    def rows(self) -> tuple[Any, Tensor]:
        """Some training rows as the model sees them, evenly spaced where all are in memory: at most
        1,000, and fewer of a large network.
        """
        problem, source = self.problem, self.fit_job.source
        cost = DRAWS * max(problem.products, problem.num_weights, 1)
        count = min(ROWS, source.num_data, max(FEW, int(PRODUCTS / cost)))
        arrays = source.arrays()
        if arrays is None:
            x, y = next(iter(source(None, count)))
            chosen = torch.arange(min(count, len(y)))
        else:
            x, y = arrays
            chosen = torch.arange(count) * len(y) // count
        chosen = chosen.to(y.device)
        return self.model.move(take(x, chosen)), self.model.move(y[chosen])

    @cached_property
    def predictive(self) -> Predictive:
        """What the method predicts at ``rows``, in the units of the history."""
        with torch.no_grad():
            return predicted(self.model, self.method, self.fitted, self.rows[0], DRAWS)

    @cached_property
    def nll(self) -> float:
        """Of these predictions, per row."""
        return -float(self.predictive.log_prob(self.rows[1]).mean())

    def column(self, *keys: str) -> list[float]:
        """Sums of these entries over the rows that have all of them."""
        return [sum(row[k] for k in keys) for row in self.history if all(k in row for k in keys)]


Check = Callable[[Case], Finding | None]


def new_checks() -> Registry[Check]:
    """No checks yet: name -> check, in the order in which findings are told."""
    return Registry("check of a fit")
