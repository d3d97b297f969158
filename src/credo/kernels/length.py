"""How long trajectories should be: half the way to where they turn back.

From a fresh momentum a chain is followed until the sum of its momenta points against the present
one, the same test that ends the trees of NUTS. In a quadratic valley that is half a period, and
half of it, a quarter period, is where a draw has forgotten the one before. A trajectory that
becomes unstable says nothing about its length and is left out.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from credo.kernels.hamiltonian import kinetic
from credo.kernels.leapfrog import Integrator
from credo.kernels.log_density import DIVERGENT, Point, normal

SHARE = 0.5  #: of the time to the turn that a trajectory lasts
EVERY = 5  #: moves of the warm-up between two measurements
_MEMORY = 0.8  # of the average over measurements, after the first few


class TrajectoryLength(NamedTuple):
    """How long trajectories are, by the measurements so far."""

    log_time: Tensor  #: () log of the time to the turn: steps times their size
    measured: Tensor  #: () number of measurements

    @classmethod
    def start(cls, step: Tensor) -> TrajectoryLength:
        """Before the first measurement: ten steps."""
        log_time = (10 / SHARE * step).double().log()
        return cls(log_time, torch.zeros_like(step, dtype=torch.float64))

    def update(self, turned: Tensor, step: Tensor) -> TrajectoryLength:
        """Take in the numbers of steps ``(C,)`` to the turn at this step size: a running mean of
        the logarithm of the chains' mean time.
        """
        found = (turned.clamp_min(1) * step).nanmean().log()
        if bool(found.isnan()):
            return self
        measured = self.measured + 1
        weight = (1 / measured).clamp_min(1 - _MEMORY)
        return TrajectoryLength(self.log_time + weight * (found - self.log_time), measured)

    def num_steps(self, step: Tensor, most: int) -> int:
        """Steps of a trajectory at this step size."""
        return max(1, min(most, round(float(SHARE * self.log_time.exp() / step))))


def turning_steps(
    integrator: Integrator,
    point: Point,
    step: Tensor,
    scale: Tensor,
    most: int,
    source: torch.Generator,
) -> Tensor:
    """Steps ``(C,)`` until every chain turns back, at most ``most``, NaN for one that becomes
    unstable; chains do not move.
    """
    momentum = normal(point.position, source)
    energy = kinetic(momentum) - point.value.double()
    total = momentum.clone()
    steps = torch.zeros_like(energy)
    going, stable = (
        torch.ones_like(steps, dtype=torch.bool),
        torch.ones_like(steps, dtype=torch.bool),
    )
    for _ in range(most):
        point, momentum = integrator(point, momentum, step, scale, 1)
        steps += going
        total = total + momentum
        lost = ~(kinetic(momentum) - point.value.double() - energy < DIVERGENT)  # true of NaN, too
        stable = stable & ~(going & lost)
        going = going & ~lost & ((total - 0.5 * momentum) * momentum).sum(-1).gt(0)
        if not bool(going.any()):
            break
    return torch.where(stable, steps, torch.nan)
