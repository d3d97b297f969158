"""Checks of numeric targets: each returns them cast, or refuses them in one sentence that names the
first bad row.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from credo.core.errors import DataError
from credo.likelihoods.base import refuse, target_tensor


def real_targets(y: Any, owner: str) -> Tensor:
    """Finite floats of shape ``(N, D)``; ``(N,)`` becomes ``(N, 1)``, whole numbers become the
    default float type.
    """
    y = target_tensor(y, owner)
    if y.dim() > 2:
        raise DataError(
            f"{owner}: the targets have shape {tuple(y.shape)}; expected (N,) or (N, D)."
        )
    y = y if y.is_floating_point() else y.to(torch.get_default_dtype())
    y = y.unsqueeze(-1) if y.dim() == 1 else y
    refuse(~y.isfinite(), y, owner, "a finite number")
    return y


def unit_targets(y: Any, owner: str) -> Tensor:
    """``real_targets`` in [0, 1]."""
    y = real_targets(y, owner)
    refuse((y < 0) | (y > 1), y, owner, "a number from 0 to 1; rescale the targets")
    return y


def count_targets(y: Any, owner: str) -> Tensor:
    """Whole numbers from 0 as floats, ``(N,)`` for one column (``(N, 1)`` is squeezed) or ``(N,
    D)``.
    """
    y = real_targets(y, owner)
    refuse((y < 0) | (y != y.floor()), y, owner, "a count 0, 1, 2, ...")
    return y.squeeze(-1) if y.shape[1] == 1 else y


def binary_targets(y: Any, owner: str) -> Tensor:
    """Zeros and ones as floats, ``(N,)`` for one column (``(N, 1)`` is squeezed) or ``(N, D)``."""
    y = real_targets(y, owner)
    refuse((y != 0) & (y != 1), y, owner, "0 or 1")
    return y.squeeze(-1) if y.shape[1] == 1 else y
