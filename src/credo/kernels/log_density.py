"""The log density of C chains at once with its slope (a target), points on it, and the acceptance
of proposals by how much it gains.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

DIVERGENT = 1000.0  #: error in the energy, in nats, beyond which a trajectory has left the true one

#: Positions ``(C, P)`` to log densities ``(C,)``, up to a constant, and their gradients ``(C, P)``.
Target = Callable[[Tensor], tuple[Tensor, Tensor]]


class Point(NamedTuple):
    """Where the chains are: positions ``(C, P)``, log densities ``(C,)`` and slopes ``(C, P)``."""

    position: Tensor
    value: Tensor
    slope: Tensor

    @classmethod
    def at(cls, target: Target, position: Tensor) -> Point:
        """The target evaluated at ``position``."""
        return cls(position, *target(position))


def differentiable(log_density: Callable[[Tensor], Tensor]) -> Target:
    """A target from a log density ``(C, P) -> (C,)`` that autograd can differentiate; chains must
    not depend on each other.
    """

    def target(position: Tensor) -> tuple[Tensor, Tensor]:
        leaf = position.detach().requires_grad_()
        with torch.enable_grad():
            value = log_density(leaf)
            (slope,) = torch.autograd.grad(value.sum(), leaf)
        return value.detach(), slope.detach()

    return target


def choose(take: Tensor, new: Point, old: Point) -> Point:
    """Chain by chain ``new`` where ``take`` ``(C,)``, else ``old``; what is not taken may be
    NaN.
    """
    wide = take.unsqueeze(-1)
    return Point(
        torch.where(wide, new.position, old.position),
        torch.where(take, new.value, old.value),
        torch.where(wide, new.slope, old.slope),
    )


def normal(like: Tensor, generator: torch.Generator) -> Tensor:
    """Standard normal numbers of the shape, type and device of ``like``."""
    return torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device)


def uniform(like: Tensor, generator: torch.Generator) -> Tensor:
    """Uniform numbers on [0, 1), likewise."""
    return torch.rand(like.shape, generator=generator, dtype=like.dtype, device=like.device)


def rate_of(gain: Tensor) -> Tensor:
    """min(1, exp(gain)); a trajectory that left the numbers has rate 0."""
    return torch.nan_to_num(gain, nan=-math.inf).clamp(max=0.0).exp()


def accepted(rate: Tensor, generator: torch.Generator) -> Tensor:
    """Which chains take their proposal."""
    return uniform(rate, generator) < rate
