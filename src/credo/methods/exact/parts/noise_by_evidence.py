"""The noise deviation under which the evidence of a Gaussian process regression is largest."""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor

from credo.likelihoods import Gaussian

LEAST = 1e-4  # of the targets' root mean square: the smallest noise that is tried
_GRID, _HALVINGS = 200, 50


def set_best_noise(likelihood: Gaussian, kernel: Tensor, targets: Tensor) -> None:
    """Put the best noise for a kernel ``(N, N)`` and targets ``(N, F)`` into the likelihood."""
    log_std = likelihood.log_std
    with torch.no_grad():
        best = best_noise(kernel, targets, log_std.numel())
        log_std.copy_(best.log().reshape(log_std.shape))


def best_noise(kernel: Tensor, targets: Tensor, noises: int) -> Tensor:
    """The noise deviations ``(noises,)``, one for all outputs or one each, under which the evidence
    of ``targets`` ``(N, F)`` is largest.

    In the eigenbasis of K the negative log evidence is sum_i [e_i / (l_i + s^2) + m log(l_i + s^2)]
    / 2, with e the squared projections of the m outputs that share s. The best of a grid in log s,
    from 1e-4 to 2 times the targets' root mean square (no optimum is above it), is sharpened by
    halving the interval in which the slope changes its sign. Warns where the evidence still rises
    at the smallest.
    """
    values, vectors = torch.linalg.eigh(kernel)
    energy = (vectors.mT @ targets.double()).square().mT.reshape(noises, -1, len(kernel)).sum(1)
    shared, values = targets.shape[1] // noises, values.clamp_min(0.0)
    size = (energy.sum(-1) / (shared * len(kernel))).sqrt()
    grid = size.log().unsqueeze(1) + torch.linspace(
        math.log(LEAST), math.log(2.0), _GRID, dtype=size.dtype, device=size.device
    )

    def loss(log_std: Tensor) -> Tensor:
        var = values + (2.0 * log_std).exp().unsqueeze(-1)
        return ((energy.unsqueeze(1) / var) + shared * var.log()).sum(-1)

    def slope(log_std: Tensor) -> Tensor:
        var = values + (2.0 * log_std).exp().unsqueeze(-1)
        return (shared / var - energy / var.square()).sum(-1)

    best = loss(grid).argmin(1, keepdim=True)
    if bool((best == 0).any()):
        warnings.warn(
            f"The evidence still rises as the noise falls to {LEAST:g} of the targets' root mean "
            "square, and is left there: the targets look free of "
            "noise; state it with Gaussian(std=...).",
            stacklevel=4,
        )
    low, high = (grid.gather(1, (best + by).clamp(0, _GRID - 1)).squeeze(1) for by in (-1, 1))
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        rising = slope(middle) > 0
        low, high = torch.where(rising, low, middle), torch.where(rising, middle, high)
    return (0.5 * (low + high)).exp()
