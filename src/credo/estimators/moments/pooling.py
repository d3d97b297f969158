"""Rules for pooling: averages are linear, maxima are matched to Gaussians two at a time (Clark
1961).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from credo.estimators.moments.arithmetic import linear_function
from credo.estimators.moments.gaussian import relu_covariance, relu_moments, standardise
from credo.estimators.moments.state import (
    Moments,
    lift,
    make_moments,
    refusal,
    rule,
    split,
    with_covariance,
)

_AVERAGE: dict[Any, int] = {F.avg_pool1d: 1, F.avg_pool2d: 2, F.avg_pool3d: 3}
_ADAPTIVE: dict[Any, int] = {
    F.adaptive_avg_pool1d: 1,
    F.adaptive_avg_pool2d: 2,
    F.adaptive_avg_pool3d: 3,
}
_MAX: dict[Any, tuple[int, Callable[..., Tensor]]] = {
    F.max_pool1d: (1, torch.max_pool1d),
    F.max_pool2d: (2, torch.max_pool2d),
    F.max_pool3d: (3, torch.max_pool3d),
}


def _each(value: Any, count: int) -> tuple[int, ...]:
    return (
        (value,) * count
        if isinstance(value, int)
        else tuple(value) * (count if len(value) == 1 else 1)
    )


def _share(size: int, pool: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The weight that each output of a one-dimensional average gives its inputs, ``(out,)``: they
    are equal.
    """
    return pool(torch.eye(size, dtype=x.dtype, device=x.device).unsqueeze(1)).amax((0, 1))


def _averaged(
    func: Any, x: Moments, apply: Callable[[Tensor], Tensor], shares: Sequence[Tensor]
) -> Moments:
    """V[sum_k w x_k] = w sum_k w V_k, with w the product of the shares along each axis."""
    weight = shares[0]
    for share in shares[1:]:
        weight = weight.unsqueeze(-1) * share
    return linear_function(func, x, apply, lambda var: apply(var) * weight)


@rule(*_AVERAGE, name="avg_pool", diagonal="exact", full="exact")
def _average(
    func: Any,
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Moments:
    x, count = lift(input, func), _AVERAGE[func]
    if divisor_override is not None:
        raise refusal(
            func, f"divisor_override={divisor_override}", "leave it out and scale afterwards"
        )
    kernels, pads = _each(kernel_size, count), _each(padding, count)
    strides = kernels if stride is None or stride == () else _each(stride, count)
    shares = [
        _share(
            size,
            lambda eye, k=k, s=s, p=p: F.avg_pool1d(eye, k, s, p, ceil_mode, count_include_pad),
            x.expected,
        )
        for size, k, s, p in zip(x.shape[-count:], kernels, strides, pads, strict=True)
    ]
    return _averaged(
        func, x, lambda t: func(t, kernels, strides, pads, ceil_mode, count_include_pad), shares
    )


@rule(*_ADAPTIVE, name="adaptive_avg_pool", diagonal="exact", full="exact")
def _adaptive(func: Any, input: Any, output_size: Any) -> Moments:
    x, count = lift(input, func), _ADAPTIVE[func]
    wanted = (
        (output_size,) * count
        if output_size is None or isinstance(output_size, int)
        else tuple(output_size)
    )
    sizes = [
        size if want is None else want for size, want in zip(x.shape[-count:], wanted, strict=True)
    ]
    shares = [
        _share(size, lambda eye, w=w: F.adaptive_avg_pool1d(eye, w), x.expected)
        for size, w in zip(x.shape[-count:], sizes, strict=True)
    ]
    return _averaged(func, x, lambda t: func(t, sizes if count > 1 else sizes[0]), shares)


def max_pair(a: Tensor, a_var: Tensor, b: Tensor, b_var: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of max(a, b) = b + max(a - b, 0) for independent Gaussians."""
    gap, gap_var = a - b, a_var + b_var
    over, over_var = relu_moments(gap, gap_var)
    larger = torch.special.ndtr(standardise(gap, gap_var)[0])
    return b + over, (b_var - 2.0 * b_var * larger + over_var).clamp_min(0.0)


@rule(
    *_MAX,
    torch.max_pool1d,
    torch.max_pool2d,
    torch.max_pool3d,
    name="max_pool",
    diagonal="Gaussian matched pair by pair",
    full="Gaussian matched pair by pair",
)
def _maximum(
    func: Any,
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Moments:
    """The largest of a window, taken two at a time as if each running maximum were Gaussian."""
    if return_indices:
        raise refusal(func, "the place of a maximum is random", "leave return_indices out")
    x = lift(input, func)
    count, function = _MAX.get(func) or next(v for v in _MAX.values() if v[1] is func)
    kernels = _each(kernel_size, count)
    strides = kernels if stride is None or stride == () else _each(stride, count)
    pads, dilations = _each(padding, count), _each(dilation, count)
    spatial = tuple(x.shape[-count:])
    shape = function(
        torch.empty(1, *spatial, device="meta"), kernels, strides, pads, dilations, ceil_mode
    ).shape[1:]
    index, valid = _windows(spatial, tuple(shape), kernels, strides, pads, dilations, x.device)
    lead = x.shape[:-count]
    if not x.full:
        mean, var = x.expected.flatten(-count), x.var_or_cov.flatten(-count)
        out, out_var = mean[..., index[0]], var[..., index[0]]
        for place in range(1, len(index)):
            m, v = mean[..., index[place]], var[..., index[place]]
            top, top_var = max_pair(m, v, out, out_var)
            out, out_var = (
                torch.where(valid[place], top, out),
                torch.where(valid[place], top_var, out_var),
            )
        return make_moments(
            out.reshape(*lead, *shape), out_var.reshape(*lead, *shape), False, x.sources
        )
    mean, cov = _full_maximum(x, x.shape[1:-count].numel(), index, valid)
    return with_covariance(mean.reshape(*lead, *shape), cov, x.sources)


def _full_maximum(x: Moments, planes: int, index: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """As above with covariances: max(a, b) = b + max(d, 0), d = a - b, for all windows of all
    channels together.
    """
    mean, cov = split(x)
    size = mean.shape[1] // planes
    shift = torch.arange(planes, device=index.device).reshape(1, -1, 1) * size
    places = (index.unsqueeze(1) + shift).flatten(1)  # (K, planes * P)
    order = places.flatten()
    mean, cov = mean[:, order], cov.index_select(-1, order).index_select(-2, order)
    for inside in valid[1:]:
        mean, cov = _merge(mean, cov, inside.repeat(planes))
    return mean, cov


def _merge(mean: Tensor, cov: Tensor, inside: Tensor) -> tuple[Tensor, Tensor]:
    """The first n units and the next n become their maxima where ``inside`` (n,); the rest stay,
    with their covariances.
    """
    n = len(inside)
    b, a, rest = mean[:, :n], mean[:, n : 2 * n], mean[:, 2 * n :]
    cov_b, cov_a = cov[:, :n], cov[:, n : 2 * n]  # rows: covariances with everything
    cov_d = cov_a - cov_b
    dd, bb, bd = (
        cov_d[:, :, n : 2 * n] - cov_d[:, :, :n],
        cov_b[:, :, :n],
        cov_b[:, :, n : 2 * n] - cov_b[:, :, :n],
    )
    over, over_cov, larger = relu_covariance(a - b, dd)
    counts = inside.to(mean.dtype)
    over, over_cov, larger = (
        over * counts,
        over_cov * counts * counts.unsqueeze(-1),
        larger * counts,
    )
    crossed = bd * larger.unsqueeze(-2)  # Cov(b_i, max(d_j, 0)) by Stein's lemma
    top = bb + crossed + crossed.mT + over_cov
    side = cov_b[:, :, 2 * n :] + larger.unsqueeze(-1) * cov_d[:, :, 2 * n :]
    whole = torch.cat(
        [torch.cat([top, side], -1), torch.cat([side.mT, cov[:, 2 * n :, 2 * n :]], -1)], -2
    )
    return torch.cat([b + over, rest], -1), whole


@lru_cache(maxsize=64)
def _windows(
    spatial: tuple[int, ...],
    shape: tuple[int, ...],
    kernels: tuple[int, ...],
    strides: tuple[int, ...],
    pads: tuple[int, ...],
    dilations: tuple[int, ...],
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """Flat input index of every window place ``(K, P)`` and whether it lies inside the image; those
    inside come first.
    """
    index, valid = [], []
    for offsets in product(*(range(k) for k in kernels)):
        flat, inside = torch.zeros(1, dtype=torch.long), torch.ones(1, dtype=torch.bool)
        for axis, offset in enumerate(offsets):
            at = torch.arange(shape[axis]) * strides[axis] - pads[axis] + offset * dilations[axis]
            fits = (at >= 0) & (at < spatial[axis])
            flat = (flat.unsqueeze(-1) * spatial[axis] + at.clamp(0, spatial[axis] - 1)).flatten()
            inside = (inside.unsqueeze(-1) & fits).flatten()
        index.append(flat)
        valid.append(inside)
    inside = torch.stack(valid)
    order = inside.long().argsort(dim=0, descending=True, stable=True)
    return torch.stack(index).gather(0, order).to(device), inside.gather(0, order).to(device)
