"""Covariances through linear maps: what a posterior family needs to meet inputs whose units are
correlated.

Units of one example are flattened: a mean ``(B, *shape)`` has a covariance ``(B, D, D)`` with D the
product of ``shape``; None stands for an input that is certain. A weight used at several positions
correlates them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from credo.core.errors import NetworkError
from credo.core.linear_map import LinearMap

MAX_UNITS = 4096  #: the covariance of one example then holds 1.7e7 numbers, 67 MB in float32


def check_units(mean: Tensor) -> None:
    """Refuse layers too wide for a covariance between all their units."""
    units = mean.shape[1:].numel()
    if units > MAX_UNITS:
        raise NetworkError(
            f"A full covariance over {units} units (activations of shape {tuple(mean.shape)}) is "
            f"too large, at most {MAX_UNITS}; "
            "use covariance='diagonal'."
        )


def sandwich(function: Callable[[Tensor], Tensor], cov: Tensor, shape: torch.Size) -> Tensor:
    """L cov L^T for a linear ``function`` L of ``(B, *shape)`` without offset."""
    for _ in range(2):
        batch, units = cov.shape[:2]
        cov = function(cov.reshape(batch * units, *shape)).reshape(batch, units, -1).mT
    return cov


def fixed_joint(
    op: LinearMap, mean: Tensor, cov: Tensor, w: Tensor, b: Tensor | None
) -> tuple[Tensor, Tensor]:
    """A linear map whose weights are known: W m + b and W cov W^T."""
    out = op(mean, w, b)
    check_units(out)
    return out, sandwich(lambda rows: op(rows, w), cov, mean.shape[1:])


def outer(x: Tensor) -> Tensor:
    """The products of all units of each example: ``(B, *shape) -> (B, D, D)``."""
    flat = x.flatten(1)
    return flat.unsqueeze(-1) * flat.unsqueeze(-2)


def per_channel(op: LinearMap, mean: Tensor, cov: Tensor | None) -> Tensor:
    """E[x_c(p) x_c(q)] for every channel c and pair of positions p, q: ``(B, C, Q, Q)``."""
    batch, channels = mean.shape[0], mean.shape[op.channel_axis]
    values = mean.movedim(op.channel_axis, 1).reshape(batch, channels, -1)
    square = values.unsqueeze(-1) * values.unsqueeze(-2)
    if cov is None:
        return square
    size = values.shape[-1]
    if op.num_spatial:
        same = cov.reshape(batch, channels, size, channels, size).diagonal(dim1=1, dim2=3)
    else:
        same = cov.reshape(batch, size, channels, size, channels).diagonal(dim1=2, dim2=4)
    return square + same.movedim(-1, 1)


def independent_channels(op: LinearMap, blocks: Tensor) -> Tensor:
    """Covariances between positions ``(B, O, P, P)``, none between channels, as ``(B, D, D)``."""
    batch, channels, size = blocks.shape[:3]
    axes = (1, 3) if op.num_spatial else (2, 4)
    return torch.diag_embed(blocks.movedim(1, -1), dim1=axes[0], dim2=axes[1]).reshape(
        batch, channels * size, channels * size
    )


def with_rows(op: LinearMap, blocks: Tensor, rows: Tensor) -> Tensor:
    """``rows[o, o'] * blocks[p, p']``: one covariance between channels (O, O), another between
    positions ``(B, P, P)``.
    """
    batch, size = blocks.shape[0], rows.shape[0] * blocks.shape[-1]
    return torch.einsum(
        "bpq,or->boprq" if op.num_spatial else "bpq,or->bpoqr", blocks, rows
    ).reshape(batch, size, size)


def independent_weights(
    op: LinearMap, mean: Tensor, cov: Tensor | None, var: Tensor, b_var: Tensor | None
) -> Tensor:
    """What independent weights of variance ``var`` add: out[o p, o p'] = sum_k V[o, k] E[x_k(p)
    x_k(p')] + V_b[o].

    k runs over input channels and kernel places. Fully connected: diag(op(mean^2 + diag cov, V) +
    V_b).
    """
    if op.num_spatial == 0 and mean.dim() == 2:
        square = mean * mean if cov is None else mean * mean + cov.diagonal(dim1=-2, dim2=-1)
        return torch.diag_embed(op(square, var, b_var))
    second = per_channel(op, mean, cov)
    places = (
        _places(op, tuple(var.shape[2:]), tuple(mean.shape[2:]), mean.device)
        if op.num_spatial
        else None
    )
    out = _gather(op, second, var, places)
    if b_var is not None:
        out = out + b_var.reshape(-1, 1, 1)
    return independent_channels(op, out)


def _gather(op: LinearMap, second: Tensor, var: Tensor, places: Tensor | None) -> Tensor:
    """Sum over kernel places of V[o, c, place] times the second moments at the inputs seen through
    that place.
    """
    if places is None:
        return torch.einsum("bcpq,oc->bopq", second, var)
    groups = op.groups
    padded = torch.nn.functional.pad(
        second, (1, 0, 1, 0)
    )  # index 0 is the padding, which is certain and zero
    weights = var.reshape(groups, var.shape[0] // groups, var.shape[1], -1)
    pattern = "bgcpq,gco->bgopq" if op.transposed else "bgcpq,goc->bgopq"
    total: Any = 0
    for place, index in enumerate(places):
        seen = padded.index_select(-1, index).index_select(-2, index)
        seen = seen.reshape(seen.shape[0], groups, -1, *seen.shape[-2:])
        total = total + torch.einsum(pattern, seen, weights[..., place])
    return total.flatten(1, 2)


def _places(
    op: LinearMap, kernel: tuple[int, ...], spatial: tuple[int, ...], device: torch.device
) -> Tensor:
    bound = tuple(
        (k, tuple(v) if isinstance(v, list) else v)
        for k, v in sorted(op.bound.items())
        if k != "groups"
    )
    return _table(op.function, bound, op.transposed, kernel, spatial, device)


@lru_cache(maxsize=256)
def _table(
    function: Callable[..., Tensor],
    bound: Any,
    transposed: bool,
    kernel: tuple[int, ...],
    spatial: tuple[int, ...],
    device: torch.device,
) -> Tensor:
    """Which input (from 1; 0 is padding) each output sees through each kernel place, ``(places,
    P)``: the map itself says.
    """
    count, size = torch.Size(kernel).numel(), torch.Size(spatial).numel()
    grid = torch.arange(1, size + 1, dtype=torch.float64).reshape(1, 1, *spatial)
    eye = torch.eye(count, dtype=torch.float64).reshape(
        *((1, count) if transposed else (count, 1)), *kernel
    )
    seen = function(grid, eye, None, **dict(bound))
    return seen.reshape(count, -1).round().long().to(device)


def embedded(words: Tensor, var: Tensor) -> Tensor:
    """Covariance of looked-up rows of independent weights: the same word twice is the same row.

    ``(B, T) -> (B, TE, TE)``.
    """
    flat = words.flatten(1)
    same = (flat.unsqueeze(-1) == flat.unsqueeze(-2)).to(var.dtype)
    blocks = torch.diag_embed(same.unsqueeze(-1) * var[flat].unsqueeze(2), dim1=2, dim2=4)
    return blocks.reshape(len(flat), flat.shape[1] * var.shape[1], -1)
