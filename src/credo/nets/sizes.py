"""Sizes of networks, checked."""

from __future__ import annotations

from credo.core.errors import SettingError


def positive(owner: str, **sizes: int) -> None:
    """Refuse sizes that are not whole numbers above zero, naming the first bad one."""
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise SettingError(
                f"{owner}: {name}={size!r} is not valid; expected a whole number above 0."
            )
