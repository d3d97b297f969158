"""Random-walk Metropolis: propose a step in a random direction, accept it by the ratio of
densities.

w' = w + s S r, r ~ N(0, I), accepted with min(1, p(D, w') / p(D, w)); S is the metric and s adapts
in the warm-up to an acceptance of 0.234. Needs no gradients, and so many moves per independent
draw, growing with the number of parameters, that it serves small models and tests.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Generator, Tensor

from credo.core.settings import setting
from credo.engine.fit_job import FitJob, Problem
from credo.engine.method import Method, methods
from credo.engine.model import Fitted, Model
from credo.kernels.log_density import accepted, normal, rate_of
from credo.kernels.metric import velocity
from credo.kernels.warmup import Adaptation, per_chain
from credo.methods.sampling.parts.chains import full_batch_schedule, start_chains, warm_up
from credo.methods.sampling.parts.density import Density
from credo.methods.sampling.parts.fitted_alongside import FittedAlongside
from credo.methods.sampling.parts.full_batch import FullBatch
from credo.methods.sampling.parts.lengths import LR, alongside_lr, full_batch_lengths
from credo.methods.sampling.parts.run_moves import Moves
from credo.methods.sampling.parts.settings import ChainSettings, FullBatchSettings

MOVES = 5000  # of the warm-up, at most
PASS = 0.5  # of a gradient, that a move costs


class MetropolisState(NamedTuple):
    """What the next move needs."""

    position: Tensor  #: (C, P)
    value: Tensor  #: (C,) the log density there
    adaptation: Adaptation


class MetropolisInfo(NamedTuple):
    """Diagnostics of a move, per chain ``(C,)`` or for all ``()``."""

    log_density: Tensor
    acceptance: Tensor
    step_size: Tensor


@methods.register("metropolis")
@dataclass(frozen=True)
class Metropolis(Method, FullBatchSettings, ChainSettings):
    """A random walk with acceptance."""

    name: ClassVar[str] = "metropolis"
    summary: ClassVar[str] = "Random-walk Metropolis: no gradients; for small models."
    reference: ClassVar[str] = (
        "Metropolis et al. 1953; Roberts, Gelman and Gilks 1997, Weak convergence and optimal "
        "scaling."
    )
    takes_epochs: ClassVar[bool] = False
    batch_size: ClassVar[int | None] = None
    lr: ClassVar[float | None] = 1e-2
    is_sampler: ClassVar[bool] = True
    fidelity: ClassVar[str] = "exact in the limit"
    conformance_settings: ClassVar[dict[str, Any]] = {
        "num_warmup": 500,
        "num_draws": 500,
        "thin": 10,
        "num_chains": 8,
    }

    num_warmup: int | None = setting(
        None,
        "Moves of every chain before the first draw, during which it adapts; None: 5,000, or "
        "fewer where a pass is dear.",
        ge=0,
        kind=int,
    )
    thin: int = setting(20, "Moves per draw.", ge=1)
    target_rate: float = setting(
        0.234, "Acceptance rate that the step size is adapted to.", gt=0.0, le=0.99
    )

    def by_problem(self, problem: Problem) -> dict[str, Any]:
        return full_batch_lengths(self, problem, PASS, MOVES) if self.settles else {}

    def usual_lr(self, problem: Problem) -> float:
        return alongside_lr(self, problem, PASS, MOVES) if self.settles else LR

    def fit(self, model: Model, fit_job: FitJob) -> Fitted:
        chains = start_chains(model, self, fit_job)
        moves = MetropolisMoves(self, chains.density, fit_job)
        draws = chains.run(self.name, moves, full_batch_schedule(self, MOVES))
        return chains.fitted(draws)


class MetropolisMoves(Moves[MetropolisState]):
    """One proposal of every chain."""

    state_type = MetropolisState

    def __init__(self, settings: Metropolis, density: Density, fit_job: FitJob) -> None:
        self.warmup = warm_up(settings, MOVES)
        self.target = FullBatch.of(density, fit_job.source, fit_job.batch_size)
        self.fitted_alongside = FittedAlongside.in_warmup(
            density, fit_job.lr, self.warmup.num_warmup
        )
        # the step that suits a Gaussian of unit variance
        self.first_step = 2.38 / math.sqrt(density.numel)

    def start(self, position: Tensor, source: Generator) -> MetropolisState:
        step = torch.tensor(self.first_step, dtype=torch.float64, device=position.device)
        value = self.target.log_density(position)
        return MetropolisState(position, value, self.warmup.start(position, step))

    def move(
        self, state: MetropolisState, index: int, source: Generator
    ) -> tuple[MetropolisState, MetropolisInfo]:
        position, value, adaptation = state
        if self.target.step_alongside(self.fitted_alongside, index, position):
            value = self.target.log_density(position)
        step = self.warmup.step(adaptation, index)
        away = velocity(adaptation.scale, normal(position, source))
        proposal = position + per_chain(step, position) * away
        proposal_value = self.target.log_density(proposal)
        rate = rate_of(proposal_value - value)
        take = accepted(rate, source)
        position = torch.where(take.unsqueeze(-1), proposal, position)
        value = torch.where(take, proposal_value, value)
        adaptation = self.warmup.adapt(adaptation, index, position, rate)
        if self.warmup.new_metric_after(index):
            first = torch.full_like(step, self.first_step)
            adaptation = self.warmup.restart(adaptation, first)
        return MetropolisState(position, value, adaptation), MetropolisInfo(value, rate, step)

    def gradients(self, info: MetropolisInfo) -> float:
        return PASS

    def drawn(self, state: MetropolisState) -> Tensor:
        return state.position
