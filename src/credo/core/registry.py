"""Names to things: methods, likelihoods, families and estimators are all found this way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NoReturn, TypeVar, cast

from credo.core.errors import SettingError, nearest

T = TypeVar("T")
E = TypeVar("E")


class Registry(dict[str, T]):
    """A dict from names to things, in order of registration, whose failed look-ups name the nearest
    entry.
    """

    def __init__(self, kind: str, entries: Mapping[str, T] | None = None) -> None:
        super().__init__(entries or {})
        self.kind = kind

    def register(self, name: str) -> Callable[[E], E]:
        """Decorator: ``@methods.register("vi")``; what it decorates keeps its own type."""

        def add(entry: E) -> E:
            if name in self:
                raise ValueError(f"{self.kind} {name!r} is registered twice")
            self[name] = cast(T, entry)
            return entry

        return add

    def __missing__(self, name: str) -> NoReturn:
        raise SettingError(f"Unknown {self.kind} {name!r}.{nearest(str(name), self)}")

    def names(self) -> list[str]:
        """All names, in order of registration."""
        return list(self)
