"""Devices by name, checked before anything is moved to them."""

from __future__ import annotations

import torch

from credo.core.errors import SettingError


def check_device(device: torch.device | str) -> torch.device:
    """The device, refused where this machine or this torch does not have it."""
    try:
        where = torch.device(device)
    except RuntimeError as error:
        raise SettingError(f"device={device!r} is not valid; expected 'cpu' or 'cuda'.") from error
    if where.type not in ("cpu", "cuda"):
        raise SettingError(f"device={device!r} is not valid; expected 'cpu' or 'cuda'.")
    if where.type == "cuda" and not torch.cuda.is_available():
        raise SettingError(
            f"device={str(device)!r} is not available: torch {torch.__version__} finds no GPU; "
            "use 'cpu'."
        )
    return where
