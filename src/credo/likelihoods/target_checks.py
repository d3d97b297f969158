"""Checks of targets: each returns them cast, or refuses them in one sentence that names the first
bad row.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from credo.core.errors import DataError


def _tensor(y: Any, owner: str) -> Tensor:
    try:
        y = torch.as_tensor(y)
    except (TypeError, ValueError, RuntimeError) as problem:
        raise DataError(
            f"{owner}: targets of type {type(y).__name__} are not numbers; encode them first."
        ) from problem
    if y.dim() == 0 or y.shape[0] == 0:
        raise DataError(f"{owner}: the targets have shape {tuple(y.shape)}; expected at least one.")
    if y.is_complex():
        raise DataError(
            f"{owner}: complex targets ({y.dtype}) have no likelihood here; split them into real "
            "columns."
        )
    return y


def _refuse(bad: Tensor, y: Tensor, owner: str, expected: str) -> None:
    if bool(bad.any()):
        where = tuple(bad.nonzero()[0].tolist())
        row = f"row {where[0]}" + (f", column {where[1]}" if len(where) > 1 else "")
        raise DataError(f"{owner}: the target in {row} is {y[where].item()}; expected {expected}.")


def real_targets(y: Any, owner: str) -> Tensor:
    """Finite floats of shape ``(N, D)``; ``(N,)`` becomes ``(N, 1)``, whole numbers become the
    default float type.
    """
    y = _tensor(y, owner)
    if y.dim() > 2:
        raise DataError(
            f"{owner}: the targets have shape {tuple(y.shape)}; expected (N,) or (N, D)."
        )
    y = y if y.is_floating_point() else y.to(torch.get_default_dtype())
    y = y.unsqueeze(-1) if y.dim() == 1 else y
    _refuse(~y.isfinite(), y, owner, "a finite number")
    return y


def unit_targets(y: Any, owner: str) -> Tensor:
    """``real_targets`` in [0, 1]."""
    y = real_targets(y, owner)
    _refuse((y < 0) | (y > 1), y, owner, "a number from 0 to 1; rescale the targets")
    return y


def label_targets(y: Any, owner: str, num_classes: int | None) -> Tensor:
    """Class indices ``(N,)`` as int64, from 0 and below ``num_classes`` where that is given; ``(N,
    1)`` is accepted.
    """
    y = _tensor(y, owner)
    y = y.squeeze(-1) if y.dim() == 2 and y.shape[1] == 1 else y
    if y.dim() != 1:
        raise DataError(
            f"{owner}: the targets have shape {tuple(y.shape)}; expected class indices of shape "
            "(N,), not one-hot rows."
        )
    top = "" if num_classes is None else f" below {num_classes}"
    bad = (~y.isfinite()) | (y < 0) | (y != y.floor()) if y.is_floating_point() else y < 0
    _refuse(
        bad | (y >= num_classes) if num_classes is not None else bad,
        y,
        owner,
        f"a class index 0, 1, ...{top}",
    )
    return y.long()


def count_targets(y: Any, owner: str) -> Tensor:
    """Whole numbers from 0 as floats, ``(N,)`` for one column (``(N, 1)`` is squeezed) or ``(N,
    D)``.
    """
    y = real_targets(y, owner)
    _refuse((y < 0) | (y != y.floor()), y, owner, "a count 0, 1, 2, ...")
    return y.squeeze(-1) if y.shape[1] == 1 else y


def binary_targets(y: Any, owner: str) -> Tensor:
    """Zeros and ones as floats, ``(N,)`` for one column (``(N, 1)`` is squeezed) or ``(N, D)``."""
    y = real_targets(y, owner)
    _refuse((y != 0) & (y != 1), y, owner, "0 or 1")
    return y.squeeze(-1) if y.shape[1] == 1 else y


def refuse_constant(y: Tensor, owner: str, what: str) -> Tensor:
    """The targets unchanged, unless a whole column holds one single value."""
    columns = y.reshape(y.shape[0], -1)
    constant = (columns == columns[:1]).all(0)
    if bool(constant.any()):
        column = int(constant.nonzero()[0])
        where = f" in column {column}" if columns.shape[1] > 1 else ""
        raise DataError(
            f"{owner}: all {y.shape[0]} targets{where} are {columns[0, column].item():g}; "
            f"expected {what}."
        )
    return y
