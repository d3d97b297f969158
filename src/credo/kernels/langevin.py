"""Langevin steps: the noise that turns descent into sampling, at an explicit temperature.

With U = -log p(D, w) and a preconditioner G (a positive number for every parameter, 1 by default),
both schemes leave exp(-U / T) invariant as the step goes to zero. A gradient from a batch of B,
scaled by N / B, is unbiased; its own noise adds variance of order step, which no scheme here
removes: smaller steps or larger batches do.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from credo.kernels.log_density import normal


def overdamped(
    position: Tensor,
    slope: Tensor,
    step: float,
    temperature: float,
    source: torch.Generator,
    preconditioner: Tensor | float = 1.0,
) -> Tensor:
    """w + step G slope + sqrt(2 step T G) noise, slope = -dU/dw: stochastic gradient Langevin
    dynamics.

    For a Gaussian of precision a the stationary variance is T / (a (1 - step a / 2)).
    """
    moved = position + step * preconditioner * slope
    if not temperature:
        return moved
    root = (
        preconditioner.sqrt() if isinstance(preconditioner, Tensor) else math.sqrt(preconditioner)
    )
    return moved + math.sqrt(2 * step * temperature) * root * normal(position, source)


def underdamped(
    position: Tensor,
    momentum: Tensor,
    slope: Tensor,
    step: float,
    friction: float,
    temperature: float,
    source: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Position and momentum after kick, half a drift, friction with noise, half a drift (the BAOAB
    splitting, Leimkuhler and Matthews 2013).

    The momentum is in units of position and has variance step * T; ``friction`` is the share of it
    lost per step, so that 1 - friction is the momentum of gradient descent with learning rate
    ``step``. Of a Gaussian target the positions have exactly the variance T / a.
    """
    momentum = momentum + step * slope
    position = position + 0.5 * momentum
    left = 1.0 - friction
    momentum = left * momentum
    if temperature:
        momentum = momentum + math.sqrt((1 - left * left) * step * temperature) * normal(
            position, source
        )
    return position + 0.5 * momentum, momentum


def cyclical(index: int, period: int) -> float:
    """(1 + cos(pi t / period)) / 2 with t the place in the period: the step falls from 1 towards 0
    and starts over.
    """
    return 0.5 * (1.0 + math.cos(math.pi * (index % period) / period))
