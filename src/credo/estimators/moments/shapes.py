"""Rules for operations that only move elements: reshaping, reordering, picking."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from credo.estimators.moments.state import (
    Moments,
    RandomWeight,
    lift,
    make_moments,
    reads,
    refusal,
    rule,
    split,
    with_covariance,
)

_ORDERED = (
    torch.flatten,
    Tensor.flatten,
    torch.reshape,
    Tensor.reshape,
    Tensor.view,
    Tensor.view_as,
    Tensor.reshape_as,
    torch.squeeze,
    Tensor.squeeze,
    torch.unsqueeze,
    Tensor.unsqueeze,
    torch.unflatten,
    Tensor.unflatten,
)
_MOVING = (
    torch.permute,
    Tensor.permute,
    torch.transpose,
    Tensor.transpose,
    torch.swapaxes,
    Tensor.swapaxes,
    torch.movedim,
    Tensor.movedim,
    torch.moveaxis,
    Tensor.moveaxis,
    reads("mT"),
    reads("T"),
    Tensor.t,
    torch.t,
    torch.flip,
    Tensor.flip,
    torch.roll,
    Tensor.roll,
    torch.pixel_shuffle,
    torch.pixel_unshuffle,
    torch.channel_shuffle,
)
_PICKING = (
    Tensor.__getitem__,
    torch.select,
    Tensor.select,
    torch.narrow,
    Tensor.narrow,
    Tensor.expand,
    Tensor.expand_as,
    Tensor.repeat,
    torch.tile,
    Tensor.tile,
    Tensor.unbind,
    torch.unbind,
    Tensor.chunk,
    torch.chunk,
    Tensor.split,
    torch.split,
    torch.index_select,
    Tensor.index_select,
    Tensor.repeat_interleave,
    torch.repeat_interleave,
    Tensor.__iter__,
)
_COPYING = (
    Tensor.contiguous,
    Tensor.clone,
    torch.clone,
    Tensor.to,
    Tensor.float,
    Tensor.double,
    Tensor.half,
    Tensor.bfloat16,
    Tensor.type,
    Tensor.type_as,
    Tensor.cuda,
    Tensor.cpu,
    Tensor.detach,
    torch.detach,
    Tensor.requires_grad_,
)


def _plain(value: Any) -> Any:
    return value.expected if isinstance(value, Moments) else value


@rule(*_COPYING, name="contiguous, clone, to, detach", diagonal="exact", full="exact")
def _copy(func: Any, input: Any, *args: Any, **kwargs: Any) -> Moments:
    x = lift(input, func)
    args = tuple(map(_plain, args))
    return make_moments(
        func(x.expected, *args, **kwargs), func(x.var_or_cov, *args, **kwargs), x.full, x.sources
    )


@rule(
    *_ORDERED,
    name="flatten, reshape, view, squeeze, unsqueeze, unflatten",
    diagonal="exact",
    full="exact",
)
@rule(
    *_MOVING,
    name="permute, transpose, movedim, flip, roll, pixel_shuffle",
    diagonal="exact",
    full="exact, example axis first",
)
@rule(
    *_PICKING,
    name="indexing, select, expand, repeat, chunk, split, unbind",
    diagonal="exact",
    full="exact, example axis first",
)
def _move(func: Any, input: Any, *args: Any, **kwargs: Any) -> Any:
    """In diagonal mode the variances move as the means do; in full mode rows and columns of the
    covariance do.
    """
    if not isinstance(input, (Moments, RandomWeight)):
        raise refusal(func, "random numbers stand where an index or a shape belongs")
    x = lift(input, func)
    args = tuple(map(_plain, args))
    out = func(x.expected, *args, **kwargs)
    if not x.full:
        var_or_cov = func(x.var_or_cov, *args, **kwargs)
        if isinstance(out, Tensor):
            return make_moments(out, var_or_cov, False, x.sources)
        return type(out)(
            make_moments(m, v, False, x.sources) for m, v in zip(out, var_or_cov, strict=True)
        )
    index = torch.arange(x.numel()).reshape(x.shape)
    moved = func(index, *(a.cpu() if isinstance(a, Tensor) else a for a in args), **kwargs)
    if isinstance(out, Tensor):
        return _reorder(func, x, out, moved)
    return type(out)(_reorder(func, x, m, i) for m, i in zip(out, moved, strict=True))


def _reorder(func: Any, x: Moments, out: Tensor, index: Tensor) -> Moments:
    """The covariance by where each unit came from; every example must keep to itself and move as
    the others do.
    """
    _, cov = split(x)
    batch, units = cov.shape[:2]
    if out.dim() == 0 or out.shape[0] != batch:
        raise refusal(
            func,
            f"it moves the example axis: {tuple(x.shape)} to {tuple(out.shape)}",
            "use the diagonal mode",
        )
    origin = index.reshape(batch, -1) - units * torch.arange(batch).unsqueeze(-1)
    if not bool((origin == origin[:1]).all() & (origin >= 0).all() & (origin < units).all()):
        raise refusal(
            func,
            f"it mixes examples: {tuple(x.shape)} to {tuple(out.shape)}",
            "use the diagonal mode",
        )
    if torch.equal(origin[0], torch.arange(units)):
        return with_covariance(out, cov, x.sources)
    place = origin[0].to(cov.device)
    return with_covariance(out, cov.index_select(-1, place).index_select(-2, place), x.sources)
