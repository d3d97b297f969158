"""When a descent of no given length ends: its objective has settled, or its budget is spent.

A fit holds its learning rate until the objective has stopped falling, then lets the rate fall to
nothing over half as many epochs again. The objective L (nll + beta KL, nats per data set) has
settled after n epochs where its mean over the last quarter of them is not below that over the
quarter before by more than

    max(2 se, tolerance),    tolerance = min(N / 1000, max(0.1, P / 100)),

with se the standard error of that difference from the means of blocks of either quarter. A slow
fall is found too, since the quarters grow with n. The test is made at epochs that lie a tenth
apart, and reads nothing but the history, so a fit that is resumed decides as if it had never
stopped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

LEAST_STEPS, LEAST_EPOCHS = 1_500, 8  # before the first test
BLOCKS = 5  # of a quarter, for the error of its mean
COOLING = 0.5  # epochs of a falling rate, as a share of those at the full rate
GROWTH = 1.1  # from one test to the next


def tolerance(num_data: int, num_weights: int) -> float:
    """Nats per data set that are not worth another third of the fit."""
    return min(num_data / 1000, max(0.1, num_weights / 100))


def fall(losses: Iterable[float]) -> tuple[float, float]:
    """By how much the last quarter's mean is below that of the quarter before, and the error of
    this difference.
    """
    values = np.asarray(list(losses), dtype=np.float64)
    quarter = len(values) // 4
    before, last = values[-2 * quarter : -quarter], values[-quarter:]
    return float(before.mean() - last.mean()), math.hypot(_error(before), _error(last))


def still_falling(losses: Iterable[float], least: float) -> bool:
    """Whether they fall by more than ``least`` and by more than twice the error of that."""
    drop, error = fall(losses)
    return drop > max(2.0 * error, least)


def _error(values: np.ndarray) -> float:
    """Of the mean, from means of blocks, since neighbours are alike."""
    blocks = np.array_split(values, min(BLOCKS, len(values)))
    means = np.array([block.mean() for block in blocks])
    return float(means.std(ddof=1)) / math.sqrt(len(means)) if len(means) > 1 else 0.0


class Settling:
    """The course of a fit of no given length: ``epochs`` at most, tests from ``least`` epochs on.

    ``decay``: factor of the learning rate by the progress of its fall in 0..1.
    """

    def __init__(
        self, epochs: int, least: int, tolerance: float, decay: Callable[[float], float]
    ) -> None:
        self.epochs = epochs
        self.full_rate = max(math.floor(epochs / (1.0 + COOLING)), 1)  # at most, at the full rate
        self.tolerance, self.decay = tolerance, decay
        self.losses: list[float] = []
        self.cooling_from: int | None = None
        self.reason = "budget"
        self._test = min(least, self.full_rate)

    def factor(self, epoch: int) -> float:
        """Of the learning rate in this epoch."""
        if self.cooling_from is None:
            return 1.0
        return self.decay((epoch - self.cooling_from) / self.cooling)

    @property
    def cooling(self) -> int:
        """Epochs of the falling rate."""
        before = self.cooling_from or 0
        return min(math.ceil(COOLING * before), self.epochs - before)

    @property
    def done(self) -> bool:
        """Whether the last epoch was the last."""
        return self.cooling_from is not None and len(self.losses) >= (
            self.cooling_from + self.cooling
        )

    def observe(self, loss: float, out_of_time: bool = False) -> str | None:
        """After every epoch; why the rate falls from now on, in the epoch after which it does."""
        self.losses.append(loss)
        count = len(self.losses)
        if self.cooling_from is not None:
            return None
        if out_of_time:
            return self._cool("seconds")
        if count >= self.full_rate:
            return self._cool("budget")
        if count < self._test:
            return None
        self._test = math.ceil(GROWTH * count)
        return None if still_falling(self.losses, self.tolerance) else self._cool("settled")

    def replay(self, rows: Iterable[Mapping[str, Any]], beta: float) -> None:
        """Be where the fit was that has left this history."""
        for row in rows:
            reason = self.observe(row["nll"] + beta * row["kl"], row.get("cooling") == "seconds")
            assert reason == row.get("cooling")

    def _cool(self, reason: str) -> str:
        self.cooling_from, self.reason = len(self.losses), reason
        return reason
