"""What a table predicts, and how predictions go back to the table's own units and names."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
import torch
from torch import Tensor

from credo.core.errors import DataError, SettingError, nearest
from credo.data.columns import Series, codes, is_numeric, moments, numbers, words

_MAX_CLASSES = 20  # whole numbers with at most this many distinct values are read as classes


Predicted = Any
"""A predictive distribution: mean, std, total, aleatoric, epistemic, interval(level).

It lives in a layer above this one.
"""


@final
@dataclass(frozen=True)
class NumericTarget:
    """A number, standardised for training: ``z = (y - mean) / std``."""

    name: str
    mean: float
    std: float
    task: str = "regression"
    likelihood: ClassVar[str] = "gaussian"

    @staticmethod
    def fit(values: Series) -> NumericTarget:
        """Refuses text and a constant target."""
        array = numbers(values)
        mean, std = moments(array)
        if std == 0.0:
            raise DataError(
                f"Target {values.name!r} is {array[0]:g} in all {len(array)} rows; there is "
                "nothing to learn from a constant."
            )
        return NumericTarget(str(values.name), mean, std)

    @property
    def outputs(self) -> int:
        """One: the mean of the target."""
        return 1

    def encode(self, values: Series) -> Tensor:
        """``(N, 1)`` float32."""
        return torch.from_numpy((numbers(values) - self.mean) / self.std).float()[:, None]

    def decode_mean(self, z: Tensor) -> np.ndarray:
        """A location (mean, quantile, draw) in original units: ``mean + std z``."""
        return self.mean + self.std * z.detach().double().cpu().numpy()

    def decode_std(self, z: Tensor) -> np.ndarray:
        """A spread in original units: ``std z``."""
        return self.std * z.detach().double().cpu().numpy()

    def decode_var(self, z: Tensor) -> np.ndarray:
        """A variance in squared original units: ``std^2 z``."""
        return self.std**2 * z.detach().double().cpu().numpy()

    def columns(self, predicted: Predicted, level: float) -> dict[str, np.ndarray]:
        """mean, std, lower, upper, and the variances total, aleatoric, epistemic."""
        lower, upper = predicted.interval(level)
        columns = {"mean": self.decode_mean(predicted.mean), "std": self.decode_std(predicted.std)}
        columns |= {"lower": self.decode_mean(lower), "upper": self.decode_mean(upper)}
        columns |= {
            name: self.decode_var(getattr(predicted, name))
            for name in ("total", "aleatoric", "epistemic")
        }
        return {name: column.reshape(-1) for name, column in columns.items()}

    def metrics(self, values: dict[str, float]) -> dict[str, float]:
        """Errors and spreads times ``std``, squared errors times ``std^2``, ``nll + log std``: a
        density has a unit too.
        """
        scale = {
            "rmse": self.std,
            "mae": self.std,
            "crps": self.std,
            "std": self.std,
            "mse": self.std**2,
        }
        moved = {name: value * scale.get(name, 1.0) for name, value in values.items()}
        shift = {"nll": math.log(self.std), "log_prob": -math.log(self.std)}
        return {name: value + shift.get(name, 0.0) for name, value in moved.items()}


@final
@dataclass(frozen=True)
class ClassTarget:
    """A class, stored by name."""

    name: str
    classes: tuple[str, ...]
    task: str = "classification"
    likelihood: ClassVar[str] = "categorical"

    @staticmethod
    def fit(values: Series) -> ClassTarget:
        """Refuses a single class; numbers are ordered as numbers, names as text."""
        found = set(words(values).tolist())
        if len(found) < 2:
            raise DataError(
                f"Target {values.name!r} has one class, {found.pop()!r}, in all {len(values)} "
                "rows; expected two or more."
            )
        ordered = sorted(found, key=float) if is_numeric(values) else sorted(found)
        return ClassTarget(str(values.name), tuple(ordered))

    @property
    def outputs(self) -> int:
        """One score per class."""
        return len(self.classes)

    def encode(self, values: Series) -> Tensor:
        """``(N,)`` int64; a class not seen in training is refused."""
        return torch.from_numpy(codes(values, self.classes, "class"))

    def decode(self, labels: Tensor) -> np.ndarray:
        """``(N,)`` class names of ``(N,)`` labels."""
        return np.array(self.classes, dtype=object)[labels.detach().cpu().numpy()]

    def columns(self, predicted: Predicted, level: float) -> dict[str, np.ndarray]:
        """label, one probability per class, and total, aleatoric, epistemic in nats; a class has no
        interval, so no ``level``.
        """
        del level
        probs = predicted.mean.detach().double().cpu().numpy()
        columns: dict[str, np.ndarray] = {"label": self.decode(predicted.mean.argmax(-1))}
        columns |= {f"p_{name}": probs[:, place] for place, name in enumerate(self.classes)}
        parts = {name: getattr(predicted, name) for name in ("total", "aleatoric", "epistemic")}
        return columns | {
            name: value.detach().double().cpu().numpy().reshape(-1) for name, value in parts.items()
        }

    def metrics(self, values: dict[str, float]) -> dict[str, float]:
        """Unchanged: classes have no unit."""
        return dict(values)


Target = NumericTarget | ClassTarget
"""The target column of a fitted table."""

_TASKS: dict[str, type[Any]] = {"regression": NumericTarget, "classification": ClassTarget}


def fit_target(values: Series, task: str | None = None) -> Target:
    """The target these values call for.

    Text, booleans, and whole numbers with at most 20 distinct values are classes; other numbers are
    regression. ``task`` ("classification" or "regression") overrides that.
    """
    if task is None:
        few_whole_numbers = (
            is_numeric(values)
            and values.nunique() <= _MAX_CLASSES
            and bool((numbers(values) % 1 == 0).all())
            and values.dtype.kind in "iu"
        )
        task = "classification" if few_whole_numbers or not is_numeric(values) else "regression"
    if task not in _TASKS:
        raise SettingError(f"Unknown task {task!r}.{nearest(task, _TASKS)}")
    return _TASKS[task].fit(values)


def target_from(entry: dict[str, Any]) -> Target:
    """A target from its JSON form."""
    if entry.get("task") not in _TASKS:
        raise DataError(
            "The table schema has a target of task "
            f"{entry.get('task')!r}.{nearest(str(entry.get('task')), _TASKS)}"
        )
    return _TASKS[entry["task"]](
        **{key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
    )
