"""Positive parameters, fixed or learned, stored as logarithms."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from credo.core.errors import SettingError

Fixed = float | Sequence[float] | None


def add_positive(
    owner: nn.Module,
    name: str,
    value: Fixed,
    initial: float,
    num_outputs: int | None,
    floor: float = 0.0,
) -> None:
    """Register ``log_<name>`` on owner: log(value - floor), constant when value is given, else a
    parameter from ``initial``.

    Constants are non-persistent float64 buffers (the constructor's arguments hold them already); a
    parameter has shape ``()``, or ``(num_outputs,)`` when that is given.
    """
    given = initial if value is None else value
    values = [float(v) for v in given] if isinstance(given, Sequence) else float(given)
    for v in values if isinstance(values, list) else [values]:
        if not (math.isfinite(v) and v > floor):
            raise SettingError(
                f"{type(owner).__name__}: {name}={given!r} is not valid; expected numbers above "
                f"{floor:g}."
            )
    if num_outputs is not None and (
        isinstance(num_outputs, bool) or not isinstance(num_outputs, int) or num_outputs < 1
    ):
        raise SettingError(
            f"{type(owner).__name__}: num_outputs={num_outputs!r} is not valid; expected a whole "
            "number from 1."
        )
    if isinstance(values, list) and num_outputs is not None and len(values) != num_outputs:
        raise SettingError(
            f"{type(owner).__name__}: {name} has {len(values)} values but "
            f"num_outputs={num_outputs}; give one per output."
        )
    log_value = torch.log(torch.tensor(values, dtype=torch.float64) - floor)
    if value is not None:
        owner.register_buffer(f"log_{name}", log_value, persistent=False)
        return
    start = log_value.to(torch.get_default_dtype())
    owner.register_parameter(
        f"log_{name}",
        nn.Parameter(start if num_outputs is None else start.expand(num_outputs).clone()),
    )


def positive(log_value: Tensor, like: Tensor, floor: float = 0.0) -> Tensor:
    """floor + exp(log_value) in the type of ``like``; only broadcasting follows, so a leading
    sample axis may be present.
    """
    return floor + log_value.to(like.dtype).exp()


def plain(value: Fixed) -> float | list[float] | None:
    """A constructor argument as JSON knows it."""
    return [float(v) for v in value] if isinstance(value, Sequence) else value
