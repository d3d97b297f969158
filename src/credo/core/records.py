"""Typed records of tensors: named tuples whose fields are tensors or further records.

Flat, by the names of the innermost fields, a record is what a checkpoint stores:
``from_tensors(type(r), named_tensors(r))`` equals ``r``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar, get_type_hints

from torch import Tensor

R = TypeVar("R")


class Record(Protocol):
    """A named tuple of tensors and records."""

    def _asdict(self) -> dict[str, Any]: ...


def named_tensors(record: Record) -> dict[str, Tensor]:
    """The tensors of a record and of the records in it, by field name; a field that is None is left
    out.
    """
    out: dict[str, Tensor] = {}
    for name, value in record._asdict().items():
        if value is None:
            continue
        inner = {name: value} if isinstance(value, Tensor) else named_tensors(value)
        twice = sorted(out.keys() & inner.keys())
        if twice:
            raise ValueError(
                f"{type(record).__name__} has two fields called {', '.join(twice)}; rename one, or "
                "a checkpoint would lose it."
            )
        out |= inner
    return out


def from_tensors(kind: type[R], tensors: Mapping[str, Tensor]) -> R:
    """The record of type ``kind`` with these tensors; names that it does not have are ignored."""
    return kind(
        **{
            name: tensors[name] if field is Tensor else from_tensors(field, tensors)
            for name, field in get_type_hints(kind).items()
        }
    )
