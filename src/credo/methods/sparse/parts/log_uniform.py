"""The log-uniform prior on chosen parameters."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from credo.core.errors import SettingError
from credo.engine.model import Model
from credo.priors import Fixed, log_uniform


def log_uniform_over(model: Model, names: Collection[str], method: str) -> Model:
    """The model with only these parameters random, under the log-uniform prior; not after an
    earlier posterior, which that would forget.
    """
    if model.prior.earlier_posterior is not None:
        raise SettingError(
            f"{method}: update would forget the earlier data, since its prior is log-uniform "
            "whatever came before; fit all data at once."
        )
    return replace(model.only(names), prior=Fixed(log_uniform()))
