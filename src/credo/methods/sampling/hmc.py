"""Hamiltonian Monte Carlo: draws from p(w given D) itself, at the price of many passes over all
data per draw.

A draw follows H(w, r) = -log p(D, w) + r.r / 2 from a fresh momentum for a time t and is accepted
with min(1, exp(-change of H)). Long trajectories lose the past, too long ones turn back: by default
warm-up measures when trajectories turn and runs half as far, all chains the same number of steps,
so that they keep step on a GPU; step sizes are jittered by a fifth. Fails to cross between modes
that energy barriers keep apart: look at R-hat of predictions, not of weights, which have
symmetries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from credo.core.settings import setting
from credo.engine.fit_job import FitJob
from credo.engine.method import methods
from credo.kernels.hamiltonian import hmc
from credo.kernels.length import EVERY, learn_length, length, start_length, turning_steps
from credo.kernels.target import Point, State
from credo.kernels.warmup import spread
from credo.methods.sampling.parts.chains import Transition
from credo.methods.sampling.parts.density import Density
from credo.methods.sampling.parts.full_batch import Mover, Trajectories

JITTER = 0.2  # of the step size, so that no trajectory closes on itself


@methods.register("hmc")
@dataclass(frozen=True)
class HMC(Trajectories):
    """Trajectories of fixed or adapted length."""

    name: ClassVar[str] = "hmc"
    summary: ClassVar[str] = (
        "Hamiltonian Monte Carlo with adapted trajectories, many chains in step."
    )
    reference: ClassVar[str] = "Neal 2011, MCMC using Hamiltonian dynamics."
    fidelity: ClassVar[str] = "exact in the limit"
    conformance_settings: ClassVar[dict[str, Any]] = {"num_warmup": 200, "num_draws": 500}

    target_rate: float = setting(
        0.65, "Acceptance rate that the step size is adapted to.", gt=0.0, le=0.99
    )
    num_steps: int | None = setting(
        None, "Leapfrog steps of a trajectory; None adapts their number.", ge=1, kind=int
    )
    max_steps: int = setting(1000, "Most steps of an adapted trajectory.", ge=1)

    def transition(self, density: Density, fit_job: FitJob) -> Transition:
        """Trajectories on the posterior."""
        return Flight(density, fit_job, self)


class Flight(Mover[HMC]):
    """HMC moves of all chains."""

    def __init__(self, density: Density, fit_job: FitJob, sampler: HMC) -> None:
        super().__init__(density, fit_job, sampler)
        self.integrator = sampler.integrator(self.target)

    def start(self, position: Tensor, source: torch.Generator) -> State:
        """Evaluate the target and find a first step size."""
        point = Point.at(self.target, position)
        state = self.first(point, source)
        return point.state() | state | start_length(state["log_step"].exp())

    def go(self, state: State, index: int, source: torch.Generator) -> tuple[State, State]:
        """One trajectory of every chain."""
        point, step, scale = Point.of(state), self.warmup.step(state, index), state["scale"]
        if self.sampler.num_steps is None and index < self.warmup.num_warmup and index % EVERY == 0:
            wide = spread(step, point.position)
            turned = turning_steps(
                self.integrator, point, wide, scale, 2 * self.sampler.max_steps, source
            )
            state = state | learn_length(state, turned, step)
        count = self.sampler.num_steps or length(state, step, self.sampler.max_steps)
        move = hmc(
            self.integrator,
            point,
            spread(step, point.position, source, JITTER),
            scale,
            count,
            source,
        )
        state = self.adapt(state | move.point.state(), index, move.point, move.rate, source)
        if self.warmup.settles(index):  # time is counted in another metric now
            state = state | start_length(state["log_step"].exp() * count / 10)
        info = {
            "log_density": move.point.value,
            "energy": move.energy,
            "divergent": move.divergent,
            "acceptance": move.rate,
        }
        return state, info | {"step_size": step, "steps": torch.tensor(float(count))}
