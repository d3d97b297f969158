"""Adam's rule for particles: forces divided by the root of their running mean square.

m <- 0.9 m + 0.1 g, v <- 0.999 v + 0.001 g^2, w <- w + lr m' / (sqrt(v') + 1e-8), where m' and v'
are m and v without the bias of their start at zero (Kingma and Ba 2015).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class AdamAverages(NamedTuple):
    """Running means, both ``(n, P)``."""

    first: Tensor  #: of the force
    second: Tensor  #: of its square


def start_adam(position: Tensor) -> AdamAverages:
    """At rest."""
    return AdamAverages(torch.zeros_like(position), torch.zeros_like(position))


def adam_step(
    averages: AdamAverages, force: Tensor, lr: float, index: int
) -> tuple[Tensor, AdamAverages]:
    """What step ``index``, from 0, adds to the positions, and the averages after it."""
    first = 0.9 * averages.first + 0.1 * force
    second = 0.999 * averages.second + 0.001 * force.square()
    unbiased = first / (1 - 0.9 ** (index + 1))
    root = (second / (1 - 0.999 ** (index + 1))).sqrt()
    return lr * unbiased / (root + 1e-8), AdamAverages(first, second)
