"""Shape checks that metrics share."""

from __future__ import annotations

from torch import Tensor

from credo.core.errors import DataError, SettingError


def check_probs(probs: Tensor, y: Tensor) -> None:
    """Refuse anything but probabilities ``(N, C)`` and whole labels ``(N,)`` below C."""
    if probs.dim() != 2 or y.dim() != 1 or len(probs) != len(y) or len(y) == 0:
        raise DataError(
            f"Got probabilities {tuple(probs.shape)} and labels {tuple(y.shape)}; expected (N, C) "
            "and (N,) with N >= 1."
        )
    if y.is_floating_point() or y.is_complex():
        raise DataError(f"Got labels of type {y.dtype}; expected whole numbers: pass y.long().")
    if int(y.min()) < 0 or int(y.max()) >= probs.shape[1]:
        raise DataError(
            f"Got labels from {int(y.min())} to {int(y.max())} for {probs.shape[1]} classes; "
            f"expected 0 to {probs.shape[1] - 1}."
        )


def check_same(first: Tensor, second: Tensor, names: str) -> None:
    """Refuse two tensors of different or empty shape, which broadcasting would hide."""
    if first.shape != second.shape or first.numel() == 0:
        raise DataError(
            f"Got {names} of shapes {tuple(first.shape)} and {tuple(second.shape)}; expected "
            "equal shapes, not empty."
        )


def check_vectors(**vectors: Tensor) -> None:
    """Refuse anything but non-empty vectors of finite scores."""
    for name, vector in vectors.items():
        if vector.dim() != 1 or len(vector) == 0 or not bool(vector.isfinite().all()):
            raise DataError(
                f"Got {name} of shape {tuple(vector.shape)}; expected a vector of at least one "
                "finite number."
            )


def check_count(name: str, value: int) -> None:
    """Refuse anything but a whole number from 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SettingError(f"{name}={value!r} is not valid; expected a whole number from 1.")
