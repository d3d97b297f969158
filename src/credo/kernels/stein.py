"""Stein forces: particles climb the density and push each other apart.

phi(w_i) = 1/n sum_j [k(w_j, w_i) slope(w_j) + d/dw_j k(w_j, w_i)]: among all directions in the
kernel's space the one along which the KL to the target falls fastest. With one particle it is
gradient ascent.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from credo.core.registry import Registry

#: Squared distances ``(n, n)`` and a squared bandwidth to kernel values, and their derivative by
#: the squared distance.
Kernel = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
kernels: Registry[Kernel] = Registry("kernel")


@kernels.register("rbf")
def rbf(squares: Tensor, bandwidth: Tensor) -> tuple[Tensor, Tensor]:
    """exp(-d^2 / h)."""
    value = (-squares / bandwidth).exp()
    return value, -value / bandwidth


@kernels.register("imq")
def imq(squares: Tensor, bandwidth: Tensor) -> tuple[Tensor, Tensor]:
    """(1 + d^2 / h)^-1/2, whose tails reach far: particles in many dimensions still feel each
    other.
    """
    base = 1 + squares / bandwidth
    return base**-0.5, -0.5 * base**-1.5 / bandwidth


def median_bandwidth(squares: Tensor) -> Tensor:
    """h = median d^2 / log n: then sum_j k(w_i, w_j) is about 1 for the others together, whatever
    the dimension.
    """
    count = len(squares)
    distances = squares[~torch.eye(count, dtype=torch.bool, device=squares.device)]
    median = distances.median() if len(distances) else squares.new_ones(())
    return (median / math.log(max(count, 2))).clamp_min(1e-12)


def stein_force(particles: Tensor, slopes: Tensor, kernel: Kernel) -> Tensor:
    """phi of every particle ``(n, P)``."""
    squares = torch.cdist(
        particles, particles, compute_mode="donot_use_mm_for_euclid_dist"
    ).square()
    value, change = kernel(squares, median_bandwidth(squares))
    # d/dw_j k = 2 change (w_j - w_i); summed over j: 2 (change @ w - w sum_j change)
    push = 2 * (change @ particles - change.sum(1, keepdim=True) * particles)
    return (value @ slopes + push) / len(particles)
