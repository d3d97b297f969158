"""Simulated annealing: Hamiltonian moves at a temperature that falls, until only the lowest
energies are left.

At temperature T the moves leave p^(1/T) invariant; slow enough cooling ends in a global mode,
practical cooling in a good one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from credo.kernels.acceptance import average, overall, start_averaging
from credo.kernels.hamiltonian import first_step, hmc
from credo.kernels.leapfrog import Integrator
from credo.kernels.target import Point, State, choose

_WANTED = 0.8
_MOVES, _STEPS, _HOTTEST, _COLDEST = 200, 10, 10.0, 1e-2  # of annealing as a start for chains


def cooling(share: float, hottest: float, coldest: float) -> float:
    """The temperature when ``share`` of the moves are done: geometric from the hottest to the
    coldest.
    """
    return hottest * (coldest / hottest) ** share


def start(integrator: Integrator, position: Tensor, source: torch.Generator) -> State:
    """Before the first move: step size, and the best point so far of every chain."""
    point = Point.at(integrator.target, position)
    guess = torch.tensor(0.1, dtype=torch.float64, device=position.device)
    step = first_step(integrator, point, torch.ones_like(position[0]), source, guess)
    return point.state() | start_averaging(step) | {"best": position, "best_value": point.value}


def move(
    integrator: Integrator, state: State, temperature: float, steps: int, source: torch.Generator
) -> tuple[State, State]:
    """One trajectory of every chain at this temperature."""
    point = Point.of(state)
    step = state["log_step"].exp()
    wide = step.to(point.position.dtype).expand(len(point.position), 1)
    moved = hmc(
        integrator, point, wide, torch.ones_like(point.position[0]), steps, source, temperature
    )
    better = moved.point.value > state["best_value"]
    best = choose(better, moved.point, Point(state["best"], state["best_value"], moved.point.slope))
    state = state | moved.point.state() | {"best": best.position, "best_value": best.value}
    state = state | average(
        {k: state[k] for k in start_averaging(step)}, overall(moved.rate, strict=True), _WANTED
    )
    info = {
        "log_density": moved.point.value,
        "energy": moved.energy,
        "divergent": moved.divergent,
        "acceptance": moved.rate,
    }
    return state, info | {"step_size": step, "temperature": torch.tensor(temperature)}


def anneal(integrator: Integrator, position: Tensor, source: torch.Generator) -> Tensor:
    """The best positions ``(C, P)`` that a short annealing of every chain comes by: a start for
    samplers.
    """
    state = start(integrator, position, source)
    for index in range(_MOVES):
        state, _ = move(
            integrator, state, cooling(index / _MOVES, _HOTTEST, _COLDEST), _STEPS, source
        )
    return state["best"]
