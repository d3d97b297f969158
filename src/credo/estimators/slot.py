"""A slot stands where a random weight would be and lets the posterior family meet the linear map
that uses it.

It is a NaN tensor of the parameter's shape. Known linear maps are handed to the estimator; reading
shape or dtype is free; anything else raises :class:`Replan`, so that a weight is never silently its
mean. A use that escapes Python shows as NaN in the output.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from credo.core.linear_map import MEETINGS, LinearMap, bind

Meet = Callable[[LinearMap, Tensor, str, Any], Tensor]


class Replan(Exception):
    """These sites met an operation without a rule: draw them as weights."""

    def __init__(self, names: set[str], why: str) -> None:
        super().__init__(f"{', '.join(sorted(names))}: {why}")
        self.names = names


def _getter(name: str) -> Any:
    return getattr(Tensor, name).__get__


_READS: frozenset[Any] = frozenset(
    [
        _getter(n)
        for n in (
            "shape",
            "dtype",
            "device",
            "ndim",
            "layout",
            "requires_grad",
            "is_cuda",
            "is_nested",
            "is_sparse",
        )
    ]
    + [
        Tensor.size,
        Tensor.dim,
        Tensor.numel,
        Tensor.is_floating_point,
        Tensor.is_complex,
        Tensor.get_device,
        Tensor.element_size,
    ]
)


class Slot(Tensor):
    """The stand-in of one random parameter; made by :func:`make_slot`."""

    site: str
    meet: Meet | None

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Route a known linear map to the estimator, allow reads, refuse the rest."""
        kwargs = kwargs or {}
        if func in MEETINGS:
            op, x, w, b = bind(func, args, kwargs)
            if isinstance(w, Slot) and not isinstance(x, Slot) and w.meet is not None:
                return w.meet(op, x, w.site, b.site if isinstance(b, Slot) else b)
        if func in _READS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        raise Replan(
            _names(args) | _names(tuple(kwargs.values())),
            f"no rule for {getattr(func, '__name__', func)}",
        )


def make_slot(site: str, shape: torch.Size, like: Tensor, meet: Meet | None) -> Slot:
    """A NaN of the given shape that costs no memory; without ``meet`` every use of it raises."""
    slot = (
        torch.full((), float("nan"), dtype=like.dtype, device=like.device)
        .expand(shape)
        .as_subclass(Slot)
    )
    slot.site = site
    slot.meet = meet
    return slot


def _names(value: Any) -> set[str]:
    if isinstance(value, Slot):
        return {value.site}
    if isinstance(value, (tuple, list)):
        return {name for item in value for name in _names(item)}
    return set()
