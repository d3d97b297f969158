"""Networks by name, so that a JSON description ``{"name": ..., "args": ...}`` builds the same
network again.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from credo.core.errors import SettingError
from credo.core.registry import Registry
from credo.core.synonyms import suggest

networks: Registry[Callable[..., nn.Module]] = Registry("network")


def names() -> list[str]:
    """Names that :func:`build` takes."""
    return networks.names()


def build(name: str, **args: Any) -> nn.Module:
    """The network registered as ``name``, built with ``args``.

    Fails with a ``SettingError`` when the name or an argument is unknown, or a required argument is
    missing.
    """
    make = networks[name]
    signature = inspect.signature(make)
    for given in args:
        if given not in signature.parameters:
            raise SettingError(
                f"Network {name!r} takes no argument "
                f"{given!r}.{suggest(given, signature.parameters)}"
            )
    missing = [
        p.name
        for p in signature.parameters.values()
        if p.default is inspect.Parameter.empty and p.name not in args
    ]
    if missing:
        raise SettingError(
            f"Network {name!r} needs {', '.join(missing)}; pass {missing[0]}=... when building it."
        )
    return make(**args)


def positive(owner: str, **sizes: int) -> None:
    """Refuse sizes that are not whole numbers above zero, naming the first bad one."""
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise SettingError(
                f"{owner}: {name}={size!r} is not valid; expected a whole number above 0."
            )
