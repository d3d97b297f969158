"""The metric of a trajectory: a scale S with S S^T an estimate of the target's covariance.

Momenta are whitened, r ~ N(0, I), so kinetic energy is r.r / 2 whatever the metric; positions
move along S r and momenta change by S^T slope. S is a vector of standard deviations (a diagonal
mass matrix) or a lower triangle (a dense one).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from credo.core.errors import SettingError

MAX_DENSE = 5_000  #: parameters of a dense metric; it then takes 100 MB in float32
# a few draws' worth of a small variance, so that few draws cannot give a singular metric
_PRIOR_DRAWS, _PRIOR_VARIANCE = 5.0, 1e-3


class Moments(NamedTuple):
    """Running moments of positions, in double precision."""

    seen: Tensor  #: () number of positions
    mean: Tensor  #: (P,)
    squares: Tensor  #: (P,) or (P, P): sum of squared (or crossed) deviations from the mean


def velocity(scale: Tensor, momentum: Tensor) -> Tensor:
    """S r of ``(C, P)``."""
    return scale * momentum if scale.dim() == 1 else momentum @ scale.mT


def force(scale: Tensor, slope: Tensor) -> Tensor:
    """S^T slope of ``(C, P)``."""
    return scale * slope if scale.dim() == 1 else slope @ scale


def check_dense(numel: int) -> None:
    """Refuse a dense metric over too many parameters."""
    if numel > MAX_DENSE:
        raise SettingError(
            f"mass='dense' over {numel} parameters would need {numel}^2 numbers; at most "
            f"{MAX_DENSE}: use 'diagonal'."
        )


def unit(like: Tensor, dense: bool) -> Tensor:
    """The identity as a scale for positions ``(C, P)``."""
    size = like.shape[-1]
    if dense:
        check_dense(size)
        return torch.eye(size, dtype=like.dtype, device=like.device)
    return torch.ones(size, dtype=like.dtype, device=like.device)


def no_moments(like: Tensor, dense: bool) -> Moments:
    """Before the first position."""
    size = like.shape[-1]
    zeros = torch.zeros(size, dtype=torch.float64, device=like.device)
    squares = torch.zeros(
        (size, size) if dense else (size,), dtype=torch.float64, device=like.device
    )
    return Moments(zeros.new_zeros(()), zeros, squares)


def observe(moments: Moments, positions: Tensor) -> Moments:
    """Take in one position of every chain ``(C, P)``: chains are pooled, so a few draws of many
    chains suffice.
    """
    batch = positions.double()
    count = len(batch)
    centre = batch.mean(0)
    inner = batch - centre
    total = moments.seen + count
    shift = centre - moments.mean
    weight = moments.seen * count / total
    if moments.squares.dim() == 1:
        squares = inner.square().sum(0) + weight * shift.square()
    else:
        squares = inner.mT @ inner + weight * torch.outer(shift, shift)
    return Moments(total, moments.mean + shift * count / total, moments.squares + squares)


def scale_of(moments: Moments, like: Tensor) -> Tensor:
    """The scale of the observed positions, shrunk a little towards a small isotropic one."""
    count = moments.seen
    share = count / (count + _PRIOR_DRAWS)
    covariance = share * moments.squares / (count - 1).clamp_min(1)
    floor = (1 - share) * _PRIOR_VARIANCE
    if covariance.dim() == 1:
        return (covariance + floor).sqrt().to(like.dtype)
    return torch.linalg.cholesky(
        covariance + floor * torch.eye(len(covariance), dtype=torch.float64, device=like.device)
    ).to(like.dtype)
