"""Rules for normalisation layers: BatchNorm in eval mode is affine, LayerNorm and GroupNorm are
linearised.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from credo.estimators.moments.state import (
    Moments,
    RandomWeight,
    is_random,
    lift,
    like,
    make_moments,
    refusal,
    rule,
    with_covariance,
)
from credo.posteriors.covariance_rules import outer


def _known(
    value: Any, shape: torch.Size, default: float, x: Tensor
) -> tuple[Tensor, Tensor | None, frozenset[str]]:
    """Mean and variance (None: certain) of a scale or shift, in a shape that broadcasts."""
    if value is None:
        return torch.full((), default, dtype=x.dtype, device=x.device), None, frozenset()
    if isinstance(value, RandomWeight):
        mean, var = value.marginals()
        return mean.reshape(shape), var.reshape(shape), frozenset([value.site])
    return value.reshape(shape), None, frozenset()


def affine(x: Moments, weight: Any, bias: Any, shape: torch.Size) -> Moments:
    """s x + b elementwise with s and b of ``shape``, known or random: V = m_s^2 V_x + (m_x^2 + V_x)
    V_s + V_b.

    Random elements of s and b are taken as independent of each other; with a covariance, the
    positions that share one are correlated by it.
    """
    mean = x.expected
    scale, scale_var, scale_site = _known(weight, shape, 1.0, mean)
    shift, shift_var, shift_site = _known(bias, shape, 0.0, mean)
    out, sources = mean * scale + shift, x.sources | scale_site | shift_site
    if not x.full:
        var = scale.square() * x.var_or_cov
        if scale_var is not None:
            var = var + (mean.square() + x.var_or_cov) * scale_var
        return make_moments(out, var if shift_var is None else var + shift_var, False, sources)
    row = scale.expand(mean.shape).flatten(1)
    cov = x.var_or_cov * row.unsqueeze(-1) * row.unsqueeze(-2)
    if scale_var is not None:
        cov = cov + (outer(mean) + x.var_or_cov) * _shared(scale_var, mean)
    return with_covariance(
        out, cov if shift_var is None else cov + _shared(shift_var, mean), sources
    )


def _shared(var: Tensor, mean: Tensor) -> Tensor:
    """Covariance between units that use the same element of a random vector: ``(D, D)``."""
    label = (
        torch.arange(var.numel(), device=var.device)
        .reshape(var.shape)
        .expand(1, *mean.shape[1:])
        .flatten()
    )
    same = label.unsqueeze(-1) == label.unsqueeze(-2)
    return same.to(var.dtype) * var.flatten()[label]


@rule(F.batch_norm, name="batch_norm in eval mode", diagonal="exact", full="exact")
def _batch_norm(
    func: Any,
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Moments:
    """(x - mean) / sqrt(var + eps), then scale and shift: affine with the running statistics."""
    if training:
        raise refusal(func, "it uses the statistics of the batch", "put BatchNorm into eval mode")
    channels = input.shape[1]
    shape = torch.Size([1, channels] + [1] * (input.dim() - 2))
    scale = torch.rsqrt(running_var + eps)
    if not isinstance(input, Moments):
        x = ((input - running_mean.reshape(shape)) * scale.reshape(shape)).as_subclass(Tensor)
        return affine(_certain(x, weight, bias), weight, bias, shape)
    return affine(affine(input, scale, -running_mean * scale, shape), weight, bias, shape)


def _certain(x: Tensor, *parameters: Any) -> Moments:
    """A known tensor that meets a random scale or shift."""
    if any(isinstance(p, RandomWeight) and p.full for p in parameters):
        units = x.shape[1:].numel()
        return with_covariance(x, x.new_zeros(len(x), units, units), frozenset())
    return make_moments(x, torch.zeros_like(x), False, frozenset())


def standardised(mean: Tensor, var_or_cov: Tensor, full: bool, eps: float) -> tuple[Tensor, Tensor]:
    """(x - average) / sqrt(second moment + eps) over the last axis: ``(..., G)``, the covariance
    ``(..., G)`` or ``(..., G, G)``.

    Centring is linear and exact. The length is replaced by the root of its expected square, and the
    covariance goes through the slope there: J = (I - 11^T/G - z z^T/G) / length, z the result. Good
    while the group is large or its variance small.
    """
    size = mean.shape[-1]
    var = var_or_cov.diagonal(dim1=-2, dim2=-1) if full else var_or_cov
    centred = mean - mean.mean(-1, keepdim=True)
    if full:
        expected = var.mean(-1, keepdim=True) - var_or_cov.mean((-2, -1)).unsqueeze(-1)
    else:
        expected = var.mean(-1, keepdim=True) * (1.0 - 1.0 / size)
    length = torch.sqrt(centred.square().mean(-1, keepdim=True) + expected + eps)
    z = centred / length
    if full:
        eye = torch.eye(size, dtype=mean.dtype, device=mean.device)
        slope = (eye - 1.0 / size - z.unsqueeze(-1) * z.unsqueeze(-2) / size) / length.unsqueeze(-1)
        return z, slope @ var_or_cov @ slope.mT
    sums = [(z**k * var).sum(-1, keepdim=True) for k in range(3)]
    own = var * (1.0 - 2.0 / size - 2.0 * z.square() / size)
    return z, (
        own + (sums[0] + 2.0 * z * sums[1] + z.square() * sums[2]) / size**2
    ) / length.square()


def _grouped(func: Any, x: Moments, groups: int, eps: float) -> Moments:
    """Standardise each of ``groups`` equal runs of an example's units."""
    if x.full:
        if groups != 1:
            raise refusal(
                func, f"it normalises {groups} groups of one example apart", "use the diagonal mode"
            )
        mean, cov = standardised(x.expected.flatten(1), x.var_or_cov, True, eps)
        return like(x, mean.reshape(x.shape), cov)
    rows = (len(x) * groups, -1)
    mean, var = standardised(x.expected.reshape(rows), x.var_or_cov.reshape(rows), False, eps)
    return like(x, mean.reshape(x.shape), var.reshape(x.shape))


@rule(
    F.layer_norm,
    name="layer_norm",
    diagonal="linearised",
    full="linearised, over the whole example",
)
def _layer_norm(
    func: Any,
    input: Any,
    normalized_shape: Any,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
) -> Moments:
    shape = torch.Size(normalized_shape)
    if not is_random(input):
        x = _certain(F.layer_norm(input, shape, eps=eps), weight, bias)
    else:
        x = lift(input, func)
        x = _grouped(func, x, x.shape[1:].numel() // shape.numel(), eps)
    return affine(x, weight, bias, torch.Size([1] * (x.dim() - len(shape)) + list(shape)))


@rule(F.group_norm, name="group_norm", diagonal="linearised", full="linearised, one group")
def _group_norm(
    func: Any, input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Moments:
    if not is_random(input):
        x = _certain(F.group_norm(input, num_groups, eps=eps), weight, bias)
    else:
        x = _grouped(func, lift(input, func), num_groups, eps)
    return affine(x, weight, bias, torch.Size([1, x.shape[1]] + [1] * (x.dim() - 2)))
