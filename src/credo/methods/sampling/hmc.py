"""Hamiltonian Monte Carlo: draws from p(w given D) itself, at the price of many passes over all
data per draw.

A draw follows H(w, r) = -log p(D, w) + r.r / 2 from a fresh momentum for a time t and is accepted
with min(1, exp(-change of H)). Long trajectories lose the past, too long ones turn back: by default
warm-up measures when trajectories turn and runs half as far, all chains the same number of steps,
so that none waits for another on a GPU; step sizes are jittered by a fifth. Fails to cross between
modes that energy barriers separate: judge by R-hat of predictions, not of weights, which have
symmetries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Generator, Tensor

from credo.core.settings import setting
from credo.engine.fit_job import FitJob, Problem
from credo.engine.method import Method, methods
from credo.engine.model import Fitted, Model
from credo.kernels.hamiltonian import Integrator, TrajectoryInfo, hmc
from credo.kernels.log_density import Point
from credo.kernels.warmup import EVERY, Adaptation, TrajectoryLength, per_chain, turning_steps
from credo.methods.sampling.parts.chains import full_batch_schedule, start_chains, warm_up
from credo.methods.sampling.parts.density import Density
from credo.methods.sampling.parts.fitted_alongside import FittedAlongside
from credo.methods.sampling.parts.full_batch import FullBatch
from credo.methods.sampling.parts.lengths import LR, MAX_STEPS, alongside_lr, full_batch_lengths
from credo.methods.sampling.parts.run_moves import Moves
from credo.methods.sampling.parts.settings import ChainSettings, CompileSettings, FullBatchSettings

JITTER = 0.2  # of the step size, so that no trajectory closes on itself


class HMCState(NamedTuple):
    """What the next move needs."""

    point: Point
    adaptation: Adaptation
    length: TrajectoryLength


class HMCInfo(NamedTuple):
    """Diagnostics of a move, per chain ``(C,)`` or for all ``()``."""

    trajectory: TrajectoryInfo  #: log density, energy, divergence, acceptance
    step_size: Tensor
    steps: Tensor


@methods.register("hmc")
@dataclass(frozen=True)
class HMC(Method, CompileSettings, FullBatchSettings, ChainSettings):
    """Trajectories of fixed or adapted length."""

    name: ClassVar[str] = "hmc"
    summary: ClassVar[str] = (
        "Hamiltonian Monte Carlo with adapted trajectories, many chains in step."
    )
    reference: ClassVar[str] = "Neal 2011, MCMC using Hamiltonian dynamics."
    takes_epochs: ClassVar[bool] = False
    batch_size: ClassVar[int | None] = None
    lr: ClassVar[float | None] = 1e-2
    is_sampler: ClassVar[bool] = True
    fidelity: ClassVar[str] = "exact in the limit"
    conformance_settings: ClassVar[dict[str, Any]] = {"num_warmup": 200, "num_draws": 500}

    target_rate: float = setting(
        0.65, "Acceptance rate that the step size is adapted to.", gt=0.0, le=0.99
    )
    num_steps: int | None = setting(
        None, "Leapfrog steps of a trajectory; None adapts their number.", ge=1, kind=int
    )
    max_steps: int | None = setting(
        None,
        "Most steps of an adapted trajectory; None: 1,000, or fewer where a gradient is dear.",
        ge=1,
        kind=int,
    )

    def by_problem(self, problem: Problem) -> dict[str, Any]:
        return full_batch_lengths(self, problem) if self.settles else {}

    def usual_lr(self, problem: Problem) -> float:
        return alongside_lr(self, problem) if self.settles else LR

    def fit(self, model: Model, fit_job: FitJob) -> Fitted:
        chains = start_chains(model, self, fit_job)
        moves = HMCMoves(self, chains.density, fit_job)
        draws = chains.run(self.name, moves, full_batch_schedule(self))
        return chains.fitted(draws)


class HMCMoves(Moves[HMCState]):
    """A trajectory of every chain, then acceptance."""

    state_type = HMCState

    def __init__(self, settings: HMC, density: Density, fit_job: FitJob) -> None:
        self.settings, self.warmup = settings, warm_up(settings)
        self.target = FullBatch.of(density, fit_job.source, fit_job.batch_size)
        self.integrator = Integrator(self.target, settings.compile)
        self.fitted_alongside = FittedAlongside.in_warmup(
            density, fit_job.lr, self.warmup.num_warmup
        )

    def start(self, position: Tensor, source: Generator) -> HMCState:
        point = Point.at(self.target, position)
        adaptation = self.warmup.start_trajectories(self.integrator, point, source)
        length = TrajectoryLength.start(adaptation.step_size.log_step.exp())
        return HMCState(point, adaptation, length)

    def move(self, state: HMCState, index: int, source: Generator) -> tuple[HMCState, HMCInfo]:
        settings, (point, adaptation, length) = self.settings, state
        most = settings.max_steps or MAX_STEPS
        if self.target.step_alongside(self.fitted_alongside, index, point.position):
            point = Point.at(self.target, point.position)
        step, scale = self.warmup.step(adaptation, index), adaptation.scale
        if settings.num_steps is None and index < self.warmup.num_warmup and index % EVERY == 0:
            steps = per_chain(step, point.position)
            turned = turning_steps(self.integrator, point, steps, scale, 2 * most, source)
            length = length.update(turned, step)
        count = settings.num_steps or length.num_steps(step, most)
        steps = per_chain(step, point.position, source, JITTER)
        moved = hmc(self.integrator, point, steps, scale, count, source)
        adaptation = self.warmup.adapt_trajectories(
            self.integrator, adaptation, index, moved.point, moved.rate, source
        )
        if self.warmup.new_metric_after(index):  # time is counted in another metric now
            length = TrajectoryLength.start(adaptation.step_size.log_step.exp() * count / 10)
        info = HMCInfo(moved.info, step, torch.tensor(float(count)))
        return HMCState(moved.point, adaptation, length), info

    def gradients(self, info: HMCInfo) -> float:
        return float(info.steps)

    def drawn(self, state: HMCState) -> Tensor:
        return state.point.position
