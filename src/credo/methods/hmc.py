"""Hamiltonian Monte Carlo: draws from p(w given D) itself, at the price of many passes over all data per draw.

A draw follows H(w, r) = -log p(D, w) + r.r / 2 from a fresh momentum for a time t and is accepted with min(1, exp(-change of H)). Long
trajectories lose the past, too long ones turn back: by default warm-up searches for the number of steps that gives the most effective
draws of predictions per gradient, the same for all chains, so that they keep step on a GPU; step sizes are jittered by a fifth. Fails to cross
between modes that energy barriers keep apart: look at R-hat of predictions, not of weights, which have symmetries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from credo.core.settings import setting
from credo.engine.density import Density
from credo.engine.full_batch import Mover, Trajectories
from credo.engine.job import Job
from credo.engine.method import methods
from credo.engine.sampling import Transition
from credo.kernels.hamiltonian import hmc
from credo.kernels.length import LengthSearch
from credo.kernels.target import Point, State
from credo.kernels.warmup import spread

JITTER = 0.2  # of the step size, so that no trajectory closes on itself


@methods.register("hmc")
@dataclass(frozen=True)
class HMC(Trajectories):
    """Trajectories of fixed or adapted length."""

    name: ClassVar[str] = "hmc"
    summary: ClassVar[str] = "Hamiltonian Monte Carlo with adapted trajectories, many chains in step."
    reference: ClassVar[str] = "Neal 2011, MCMC using Hamiltonian dynamics."
    small: ClassVar[dict[str, Any]] = {"num_warmup": 200, "num_draws": 500}

    num_steps: int | None = setting(None, "Leapfrog steps of a trajectory; None searches for the best number.", ge=1, kind=int)
    max_steps: int = setting(1000, "Most steps of an adapted trajectory.", ge=1)

    def transition(self, density: Density, job: Job) -> Transition:
        """Trajectories on the posterior."""
        return Flight(density, job, self)


class Flight(Mover):
    """HMC moves of all chains."""

    def __init__(self, density: Density, job: Job, sampler: HMC) -> None:
        super().__init__(density, job, sampler)
        self.sampler, self.integrator = sampler, sampler.integrator(self.target)
        self.search = LengthSearch(sampler.max_steps)

    def start(self, position: Tensor, source: torch.Generator) -> State:
        """Evaluate the target and find a first step size."""
        point = Point.at(self.target, position)
        state = point.state() | self.first(point, source)
        return state | (self.search.start(self.target.features(position)) if self.sampler.num_steps is None else {})

    def go(self, state: State, index: int, source: torch.Generator) -> tuple[State, State]:
        """One trajectory of every chain."""
        point, step = Point.of(state), self.warmup.step(state, index)
        searching = self.sampler.num_steps is None and index < self.warmup.num_warmup
        offset = index % 3 if searching else 1
        count = self.sampler.num_steps or self.search.steps(state, offset)
        wide = spread(step, point.position, source, JITTER)
        move = hmc(self.integrator, point, wide, state["scale"], count, source)
        state = state | move.point.state()
        if searching:
            before, after = (self.target.features(where.position) for where in (point, move.point))
            state = self.search.learn(state, offset, before, after)
            state = self.search.forget(state, after) if self.warmup.settles(index) else state
        state = self.adapt(state, index, move.point, move.rate, source)
        info = {"log_density": move.point.value, "energy": move.energy, "divergent": move.divergent, "acceptance": move.rate}
        return state, info | {"step_size": step, "steps": torch.tensor(float(count))}
