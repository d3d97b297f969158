"""Hamiltonian Monte Carlo: one draw of every chain by a trajectory of given length.

With H = -log density + r.r / 2 a trajectory's end is accepted with probability min(1, exp((H - H')
/ T)); T = 1 samples the target, a lower T its power 1 / T. The change in the energy is divided by T
and momenta have variance T, so that one step size serves all temperatures.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from credo.kernels.leapfrog import Integrator
from credo.kernels.log_density import DIVERGENT, Point, accepted, choose, normal, rate_of


class TrajectoryInfo(NamedTuple):
    """Diagnostics of a trajectory, per chain ``(C,)``."""

    log_density: Tensor
    energy: Tensor
    divergent: Tensor
    acceptance: Tensor


class Move(NamedTuple):
    """What one draw was: where the chains are now, and per chain ``(C,)`` acceptance rate,
    divergence and energy.
    """

    point: Point
    rate: Tensor
    divergent: Tensor
    energy: Tensor

    @property
    def info(self) -> TrajectoryInfo:
        """As diagnostics."""
        return TrajectoryInfo(self.point.value, self.energy, self.divergent, self.rate)


def kinetic(momentum: Tensor) -> Tensor:
    """r.r / 2 per chain, summed in double precision."""
    return 0.5 * momentum.double().square().sum(-1)


def hmc(
    integrator: Integrator,
    point: Point,
    step: Tensor,
    scale: Tensor,
    count: int,
    generator: torch.Generator,
    temperature: float = 1.0,
) -> Move:
    """One draw after ``count`` steps of size ``step`` ``(C, 1)`` under the metric ``scale``."""
    momentum = normal(point.position, generator) * math.sqrt(temperature)
    before = kinetic(momentum) - point.value.double()
    end, turned = integrator(point, momentum, step, scale, count)
    after = kinetic(turned) - end.value.double()
    gain = (before - after) / temperature
    rate = rate_of(gain)
    take = accepted(rate, generator)
    divergent = ~(gain > -DIVERGENT)
    return Move(choose(take, end, point), rate, divergent, torch.where(take, after, before))


def first_step(
    integrator: Integrator,
    point: Point,
    scale: Tensor,
    generator: torch.Generator,
    guess: Tensor | float,
) -> Tensor:
    """A step size ``()`` at which a single step is accepted about four times in five, found by
    halving and doubling the guess.
    """
    step = torch.as_tensor(guess, dtype=torch.float64, device=point.position.device)
    direction = 0
    for _ in range(50):
        steps = step.to(point.position.dtype).expand(len(point.position), 1)
        rate = float(hmc(integrator, point, steps, scale, 1, generator).rate.double().mean())
        now = 1 if rate > 0.8 else -1
        if direction and now != direction:
            break
        direction = now
        step = step * 2.0**now
    return step
