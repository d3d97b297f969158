"""Cooling chains down: Hamiltonian moves at a temperature that falls, until only the lowest
energies are left (simulated annealing).

At temperature T the moves leave p^(1/T) invariant; slow enough cooling ends in a global mode,
practical cooling in a good one.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from credo.kernels.hamiltonian import Integrator, TrajectoryInfo, first_step, hmc
from credo.kernels.log_density import Point, choose
from credo.kernels.warmup import StepSize, average, overall, start_averaging

_WANTED_RATE = 0.8
_MOVES, _STEPS, _HOTTEST, _COLDEST = 200, 10, 10.0, 1e-2  # of annealing as a start for chains


class CoolingState(NamedTuple):
    """What the next move needs."""

    point: Point
    step_size: StepSize
    best: Tensor  #: (C, P) the best position so far of every chain
    best_value: Tensor  #: (C,) the log density there


class CoolingInfo(NamedTuple):
    """Diagnostics of a move, per chain ``(C,)`` or for all ``()``."""

    trajectory: TrajectoryInfo
    step_size: Tensor
    temperature: Tensor


def temperature_at(share: float, hottest: float, coldest: float) -> float:
    """The temperature when ``share`` of the moves are done: geometric from the hottest to the
    coldest.
    """
    return hottest * (coldest / hottest) ** share


def start_cooling(
    integrator: Integrator, position: Tensor, source: torch.Generator
) -> CoolingState:
    """Before the first move."""
    point = Point.at(integrator.target, position)
    step = first_step(integrator, point, torch.ones_like(position[0]), source, 0.1)
    return CoolingState(point, start_averaging(step), position, point.value)


def cooling_move(
    integrator: Integrator,
    state: CoolingState,
    temperature: float,
    steps: int,
    source: torch.Generator,
) -> tuple[CoolingState, CoolingInfo]:
    """One trajectory of every chain at this temperature."""
    point = state.point
    step = state.step_size.log_step.exp()
    moved = hmc(
        integrator,
        point,
        step.to(point.position.dtype).expand(len(point.position), 1),
        torch.ones_like(point.position[0]),
        steps,
        source,
        temperature,
    )
    better = moved.point.value > state.best_value
    best = choose(better, moved.point, Point(state.best, state.best_value, moved.point.slope))
    step_size = average(state.step_size, overall(moved.rate, strict=True), _WANTED_RATE)
    info = CoolingInfo(moved.info, step, torch.tensor(temperature))
    return CoolingState(moved.point, step_size, best.position, best.value), info


def anneal(integrator: Integrator, position: Tensor, source: torch.Generator) -> Tensor:
    """The best positions ``(C, P)`` that a short annealing of every chain comes by: a start for
    samplers.
    """
    state = start_cooling(integrator, position, source)
    for index in range(_MOVES):
        temperature = temperature_at(index / _MOVES, _HOTTEST, _COLDEST)
        state, _ = cooling_move(integrator, state, temperature, _STEPS, source)
    return state.best
