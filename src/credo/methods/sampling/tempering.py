"""Parallel tempering: a ladder of chains from the posterior up to almost the prior, whose
neighbours swap places.

Rung k samples p(w) p(D given w)^b_k by Hamiltonian moves, b_0 = 1; hot rungs roam between modes and
pass them down by swaps. The ladder is respaced in the warm-up until every pair swaps equally often.
Draws are of the posterior's rung alone. Costs K chains for one; with many data the modes are so far
apart in likelihood that K must be large: ``swap`` in the history says how readily rungs swap.
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
from credo.kernels.ladder import Ladder, adapt_rungs, step_per_chain, swap
from credo.kernels.log_density import Point
from credo.kernels.warmup import Adaptation, StepSize
from credo.methods.sampling.parts.chains import full_batch_schedule, start_chains, warm_up
from credo.methods.sampling.parts.density import Density
from credo.methods.sampling.parts.fitted_alongside import FittedAlongside
from credo.methods.sampling.parts.full_batch import FullBatch, Tempered
from credo.methods.sampling.parts.lengths import LR, alongside_lr, full_batch_lengths
from credo.methods.sampling.parts.run_moves import Moves
from credo.methods.sampling.parts.settings import ChainSettings, CompileSettings, FullBatchSettings


class TemperingState(NamedTuple):
    """What the next move needs."""

    point: Point  #: of K x C chains, rung after rung: the first C are the posterior's
    adaptation: Adaptation  #: a step size (K,) for every rung, the metric of the posterior's
    ladder: Ladder


class TemperingInfo(NamedTuple):
    """Diagnostics of a move, of the posterior's chains ``(C,)`` or for all ``()``."""

    trajectory: TrajectoryInfo  #: log density, energy, divergence, acceptance
    step_size: Tensor
    steps: Tensor
    swap: Tensor | None  #: mean acceptance rate of swaps, once there was one


@methods.register("tempering")
@dataclass(frozen=True)
class Tempering(Method, CompileSettings, FullBatchSettings, ChainSettings):
    """Chains at many temperatures that swap."""

    name: ClassVar[str] = "tempering"
    summary: ClassVar[str] = "Parallel tempering: hot chains carry cold ones between modes."
    reference: ClassVar[str] = (
        "Geyer 1991, Markov chain Monte Carlo maximum likelihood; Syed et al. 2022, "
        "Non-reversible parallel tempering."
    )
    takes_epochs: ClassVar[bool] = False
    batch_size: ClassVar[int | None] = None
    lr: ClassVar[float | None] = 1e-2
    is_sampler: ClassVar[bool] = True
    fidelity: ClassVar[str] = "exact in the limit"
    conformance_settings: ClassVar[dict[str, Any]] = {
        "num_warmup": 200,
        "num_draws": 500,
        "num_rungs": 4,
        "num_steps": 5,
    }

    num_rungs: int = setting(8, "Temperatures of the ladder, the posterior's included.", ge=1)
    hottest: float = setting(
        0.02, "Power of the likelihood at the hottest rung; above 0.", gt=0.0, le=1.0
    )
    num_steps: int = setting(20, "Leapfrog steps of a move.", ge=1)

    def by_problem(self, problem: Problem) -> dict[str, Any]:
        return full_batch_lengths(self, problem, self.cost) if self.settles else {}

    def usual_lr(self, problem: Problem) -> float:
        return alongside_lr(self, problem, self.cost) if self.settles else LR

    @property
    def cost(self) -> float:
        """Gradients of the posterior's chains that a move is worth: steps, and swaps."""
        return self.num_rungs * (self.num_steps + 1.5)

    def fit(self, model: Model, fit_job: FitJob) -> Fitted:
        chains = start_chains(model, self, fit_job)
        moves = TemperingMoves(self, chains.density, fit_job)
        draws = chains.run(self.name, moves, full_batch_schedule(self))
        return chains.fitted(draws)


class TemperingMoves(Moves[TemperingState]):
    """A trajectory of every chain at its rung's temperature, then swaps."""

    state_type = TemperingState

    def __init__(self, settings: Tempering, density: Density, fit_job: FitJob) -> None:
        self.settings, self.warmup = settings, warm_up(settings)
        self.target = FullBatch.of(density, fit_job.source, fit_job.batch_size)
        self.tempered = Tempered(self.target, settings.num_rungs, settings.num_chains)
        self.integrator = Integrator(self.tempered, settings.compile)
        self.fitted_alongside = FittedAlongside.in_warmup(
            density, fit_job.lr, self.warmup.num_warmup
        )

    def start(self, position: Tensor, source: Generator) -> TemperingState:
        """All rungs at the same places."""
        ladder = Ladder.start(self.settings.num_rungs, self.settings.hottest, position)
        point = self.tempered.at(ladder.powers, position.repeat(self.settings.num_rungs, 1))
        adaptation = self.warmup.start_trajectories(self.integrator, point, source)
        step_size = StepSize(*(t.expand(len(ladder.powers)).clone() for t in adaptation.step_size))
        return TemperingState(point, adaptation._replace(step_size=step_size), ladder)

    def move(
        self, state: TemperingState, index: int, source: Generator
    ) -> tuple[TemperingState, TemperingInfo]:
        rungs, chains = self.settings.num_rungs, self.settings.num_chains
        point, adaptation, ladder = state
        self.tempered.set_powers(ladder.powers)
        if self.target.step_alongside(self.fitted_alongside, index, self.drawn(state)):
            point = Point.at(self.tempered, point.position)
        step = self.warmup.step(adaptation, index)
        steps = step_per_chain(step, chains, point.position, source)
        count, scale = self.settings.num_steps, adaptation.scale
        moved = hmc(self.integrator, point, steps, scale, count, source)
        _, log_likelihood = self.target.parts(moved.point.position)
        values = log_likelihood.reshape(rungs, chains)
        origin, rates = swap(ladder.powers, values, index, source)
        rows = (origin * chains + torch.arange(chains, device=origin.device)).flatten()
        point = self.tempered.at(ladder.powers, moved.point.position[rows])
        if index < self.warmup.num_warmup:
            rate = moved.rate.reshape(rungs, chains)
            adaptation = adapt_rungs(self.warmup, adaptation, index, point.position[:chains], rate)
            ladder = ladder.observe(rates)
            if self.warmup.new_metric_after(index) and rungs > 1:
                ladder = ladder.respaced()
                point = self.tempered.at(ladder.powers, point.position)
        ladder = ladder.with_rates(rates)
        swapped = ladder.swapped.nanmean()
        cold = TrajectoryInfo(*(t[:chains] for t in moved.info))
        info = TemperingInfo(
            cold._replace(log_density=point.value[:chains]),  # of the draw itself, after its swap
            step[0],
            torch.tensor(float(count)),
            None if bool(swapped.isnan()) else swapped,
        )
        return TemperingState(point, adaptation, ladder), info

    def gradients(self, info: TemperingInfo) -> float:
        return self.settings.cost

    def drawn(self, state: TemperingState) -> Tensor:
        return state.point.position[: self.settings.num_chains]
