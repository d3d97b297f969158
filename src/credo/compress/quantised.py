"""A network as integer codes: the result of pruning and quantisation, and what a file stores.

Most weights of a sparse network are exactly zero and the others take a few values per tensor, its
*codebook*. Both are exact: the numbers of a :class:`Quantised` network are those that are evaluated
and those that a file gives back, bit for bit.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor, nn

from credo.core.errors import CredoError, NetworkError, SettingError
from credo.core.standardised import Standardised, with_units, without_units

_EXPONENT_END = 6  # bits of a float16 before its fraction: sign and exponent


@final
@dataclass(frozen=True)
class Coded:
    """A tensor of few values: code 0 is exactly zero, code k is ``book[k - 1]``.

    ``codes``: int32 of the tensor's shape, from 0 to K. ``book``: the codebook, float32 ``(K,)``,
    finite, ascending, without zero or repeats; K may be 0. Anything else is refused.
    """

    codes: Tensor
    book: Tensor

    def __post_init__(self) -> None:
        if (
            self.codes.is_floating_point()
            or self.codes.is_complex()
            or self.codes.dtype == torch.bool
        ):
            raise CredoError(
                f"Codes have the type {self.codes.dtype}; expected whole numbers. Use "
                "Coded.of(values) for a tensor of values."
            )
        if self.book.dim() != 1:
            raise CredoError(
                f"A book has the shape {tuple(self.book.shape)}; expected one axis, (K,)."
            )
        object.__setattr__(self, "codes", self.codes.detach().to("cpu", torch.int32).contiguous())
        object.__setattr__(self, "book", self.book.detach().to("cpu", torch.float32).contiguous())
        levels = len(self.book)
        if (
            not bool(self.book.isfinite().all())
            or not bool(self.book.ne(0).all())
            or not bool((self.book.diff() > 0).all())
        ):
            raise CredoError(
                f"The book {self.book.tolist()} is not finite, ascending, free of repeats and of "
                "zero (which is code 0). Use Coded.of(values)."
            )
        lowest, highest = (
            (int(self.codes.min()), int(self.codes.max())) if self.codes.numel() else (0, 0)
        )
        if lowest < 0 or highest > levels:
            raise CredoError(
                f"Codes run from {lowest} to {highest}; a book of {levels} values has the codes 0 "
                f"to {levels}."
            )

    @classmethod
    def of(cls, values: Tensor) -> Coded:
        """The codes of a tensor that is quantised already: its book is the values that occur, zero
        aside.
        """
        flat = values.detach().to("cpu", torch.float32)
        book = flat[flat != 0].unique(sorted=True)
        codes = torch.where(flat == 0, 0, torch.searchsorted(book, flat.contiguous()) + 1)
        return cls(codes.to(torch.int32), book)

    @property
    def shape(self) -> torch.Size:
        """The tensor's shape."""
        return self.codes.shape

    @property
    def numel(self) -> int:
        """How many weights."""
        return self.codes.numel()

    @property
    def nonzero(self) -> int:
        """How many of them are not zero."""
        return int(self.codes.count_nonzero())

    @property
    def stored(self) -> Tensor:
        """What is stored for each element, zero for zero: the codes."""
        return self.codes

    def rearranged(self, move: Callable[[Tensor], Tensor]) -> Coded:
        """The same elements in other places."""
        return Coded(move(self.codes), self.book)

    def tensor(self) -> Tensor:
        """The values, float32."""
        return torch.cat([torch.zeros(1), self.book])[self.codes.long()]


@final
@dataclass(frozen=True)
class Raw:
    """A tensor that is stored as it is, such as BatchNorm's statistics or a counter; real or whole
    numbers or flags, nothing complex.
    """

    values: Tensor

    def __post_init__(self) -> None:
        if self.values.is_complex():
            raise CredoError(
                f"A tensor of the type {self.values.dtype} cannot be stored; expected real or "
                "whole numbers."
            )
        object.__setattr__(self, "values", self.values.detach().cpu().contiguous().clone())

    @property
    def shape(self) -> torch.Size:
        """The tensor's shape."""
        return self.values.shape

    @property
    def numel(self) -> int:
        """How many numbers."""
        return self.values.numel()

    @property
    def nonzero(self) -> int:
        """How many of them are not zero."""
        return int(self.values.count_nonzero())

    @property
    def stored(self) -> Tensor:
        """What is stored for each element, zero for zero: its value."""
        return self.values

    def rearranged(self, move: Callable[[Tensor], Tensor]) -> Raw:
        """The same elements in other places."""
        return Raw(move(self.values))

    def tensor(self) -> Tensor:
        """The values in their own type."""
        return self.values


Entry = Coded | Raw


@final
@dataclass(frozen=True)
class Quantised:
    """All tensors of a network by name, in the order of its state dict; ``units``: of a network
    that takes x and gives outputs in units of their own.
    """

    entries: Mapping[str, Entry]
    units: Standardised | None = None

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __getitem__(self, name: str) -> Entry:
        return self.entries[name]

    @property
    def numel(self) -> int:
        """All numbers of the network."""
        return sum(entry.numel for entry in self.entries.values())

    @property
    def nonzero(self) -> int:
        """Those that are not zero."""
        return sum(entry.nonzero for entry in self.entries.values())

    def values(self, name: str) -> Tensor:
        """One tensor as float32, whatever it is stored as."""
        if name not in self.entries:
            raise NetworkError(
                f"No tensor {name!r} here; there are {', '.join(self.entries) or 'none'}."
            )
        return self.entries[name].tensor().float()

    def state(self) -> dict[str, Tensor]:
        """A state dict: coded tensors as float32, the others in their own type."""
        return {name: entry.tensor() for name, entry in self.entries.items()}

    def fill(self, net: nn.Module) -> nn.Module:
        """A copy of ``net`` in evaluation mode that holds these values; ``net`` itself is left
        alone.

        Refused where names or shapes differ from those of its state dict.
        """
        check_state(self.entries, net)
        filled = copy.deepcopy(without_units(net)).eval()
        own = filled.state_dict()
        filled.load_state_dict(
            {name: tensor.to(own[name]) for name, tensor in self.state().items()}
        )
        return with_units(filled, self.units)


def check_state(entries: Mapping[str, Entry], net: nn.Module) -> None:
    """Refuse a network whose state dict has other names or shapes than these entries, naming the
    first that differ.
    """
    own = net.state_dict()
    missing, extra = [n for n in own if n not in entries], [n for n in entries if n not in own]
    if missing or extra:
        parts = [
            f"{text} {', '.join(map(repr, names[:3]))}"
            for text, names in (("lack", missing), ("have besides", extra))
            if names
        ]
        raise NetworkError(
            f"The codes do not belong to this network: they {' and '.join(parts)}. Give the "
            "network they were made from."
        )
    for name, entry in entries.items():
        if entry.shape != own[name].shape:
            raise NetworkError(
                f"{name!r} was coded with the shape {tuple(entry.shape)}; the network has "
                f"{tuple(own[name].shape)}. "
                "Give the network it was made from."
            )


def rounded_book(values: Tensor, bits: int = 16) -> Tensor:
    """The nearest numbers that ``bits`` bits store: a float16 of which only the leading ``bits``
    are kept, ``(K,)`` as float32.

    Sign and exponent take 6 bits, the fraction the rest: the relative error is at most 2^-(bits -
    5), 3 % for 10 bits. Numbers that round to zero or past the largest are refused. A file finds by
    itself how few bits a book needs.
    """
    if isinstance(bits, bool) or not isinstance(bits, int) or not _EXPONENT_END <= bits <= 16:
        raise SettingError(
            f"rounded_book: bits={bits!r} is not valid; expected a whole number from "
            f"{_EXPONENT_END} to 16."
        )
    exact = values.detach().to("cpu", torch.float64).numpy()
    drop = 16 - bits
    largest = np.array(0x7BFF >> drop << drop, dtype=np.uint16).view(np.float16)
    if not np.isfinite(exact).all() or (np.abs(exact) > float(largest)).any():
        raise SettingError(
            f"A book value is not finite or beyond {float(largest)}, the largest of {bits} bits; "
            "divide the weights first."
        )
    patterns = np.arange(0, 0x7C00, 1 << drop, dtype=np.uint16)
    numbers = patterns.view(np.float16).astype(np.float64)
    nearest = numbers[np.searchsorted((numbers[1:] + numbers[:-1]) / 2, np.abs(exact))]
    if ((nearest == 0) & (exact != 0)).any():
        raise SettingError(
            f"A book value is nearer to zero than to {numbers[1]:.3g}, the smallest of {bits} "
            "bits; prune it or use more bits."
        )
    return torch.from_numpy(np.copysign(nearest, exact).astype(np.float32))
