"""Names to classes: methods, likelihoods, families and estimators are all found this way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar, cast

from credo.core.errors import SettingError, nearest

T = TypeVar("T")
E = TypeVar("E")


class Registry(Generic[T]):
    """An ordered mapping from names to things, whose failed look-ups name the nearest entry."""

    def __init__(self, kind: str, entries: Mapping[str, T] | None = None) -> None:
        self.kind = kind
        self._entries: dict[str, T] = dict(entries or {})

    def register(self, name: str) -> Callable[[E], E]:
        """Decorator: ``@methods.register("vi")``; what it decorates keeps its own type."""

        def add(entry: E) -> E:
            if name in self._entries:
                raise ValueError(f"{self.kind} {name!r} is registered twice")
            self._entries[name] = cast(T, entry)
            return entry

        return add

    def __getitem__(self, name: str) -> T:
        if name not in self._entries:
            raise SettingError(f"Unknown {self.kind} {name!r}.{nearest(str(name), self._entries)}")
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def items(self) -> list[tuple[str, T]]:
        """Name and entry, in order of registration."""
        return list(self._entries.items())

    def names(self) -> list[str]:
        """All names, in order of registration."""
        return list(self._entries)
