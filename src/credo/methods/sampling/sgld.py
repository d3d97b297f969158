"""Stochastic gradient Langevin dynamics: descent on batches plus noise of exactly the size that
makes its path a sample.

w <- w - eta dU/dw + sqrt(2 eta T) noise with U = -(N / B) sum log p(y given x, w) - log p(w) and
eta = lr / N. The step is not corrected by acceptance: variances are too large by a factor 1 / (1 -
eta a / 2) for a direction of curvature a, and by the noise of batches. Fails where curvatures
differ widely: the steepest direction bounds the step and the flattest then barely moves (see
``psgld``, ``sghmc``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Generator, Tensor

from credo.engine.fit_job import FitJob, Problem
from credo.engine.method import Method, methods
from credo.engine.model import Fitted, Model
from credo.kernels.langevin import overdamped
from credo.methods.sampling.parts.chains import start_chains, stochastic_schedule
from credo.methods.sampling.parts.density import Density
from credo.methods.sampling.parts.fitted_alongside import FittedAlongside
from credo.methods.sampling.parts.lengths import stochastic_lengths
from credo.methods.sampling.parts.run_moves import Moves
from credo.methods.sampling.parts.settings import (
    CONFORMANCE,
    ChainSettings,
    StochasticGradientSettings,
)
from credo.methods.sampling.parts.step_size import Step, StepSearch
from credo.methods.sampling.parts.stochastic_gradient import StochasticGradient

STEEPEST = 0.2  # eta a: the steepest direction is then a ninth too wide


class SGLDState(NamedTuple):
    """What the next move needs."""

    position: Tensor  #: (C, P)
    step: Step


class SGLDInfo(NamedTuple):
    """Diagnostics of a move, per chain ``(C,)`` or for all ``()``."""

    log_density: Tensor
    lr: Tensor
    noise: Tensor | None  #: of batches, where it was measured


@methods.register("sgld")
@dataclass(frozen=True)
class SGLD(Method, StochasticGradientSettings, ChainSettings):
    """Langevin steps on batches."""

    name: ClassVar[str] = "sgld"
    summary: ClassVar[str] = (
        "Stochastic gradient Langevin dynamics: descent with noise that makes it sample."
    )
    reference: ClassVar[str] = (
        "Welling and Teh 2011, Bayesian learning via stochastic gradient Langevin dynamics."
    )
    takes_epochs: ClassVar[bool] = False
    batch_size: ClassVar[int | None] = 128
    lr: ClassVar[float | None] = 1e-2
    is_sampler: ClassVar[bool] = True
    tolerance: ClassVar[float] = 0.05
    conformance_settings: ClassVar[dict[str, Any]] = CONFORMANCE

    def usual_batch_size(self, problem: Problem) -> int | None:
        return problem.batch_of_chains()

    def by_problem(self, problem: Problem) -> dict[str, Any]:
        return stochastic_lengths(self, problem) if self.settles else {}

    def fit(self, model: Model, fit_job: FitJob) -> Fitted:
        chains = start_chains(model, self, fit_job)
        moves = SGLDMoves(self, chains.density, fit_job)
        draws = chains.run(self.name, moves, stochastic_schedule(self))
        return chains.fitted(draws)


class SGLDMoves(Moves[SGLDState]):
    """A Langevin step of every chain."""

    state_type = SGLDState

    def __init__(self, settings: SGLD, density: Density, fit_job: FitJob) -> None:
        self.settings = settings
        warmup = stochastic_schedule(settings).num_warmup
        alongside = FittedAlongside.in_warmup(density, settings.point_lr, warmup)
        self.gradient = StochasticGradient(density, fit_job, settings.num_chains, alongside)
        self.fitted_alongside = alongside
        self.steps = StepSearch(density, fit_job, warmup, STEEPEST, 0.5)

    def start(self, position: Tensor, source: Generator) -> SGLDState:
        return SGLDState(position, self.steps.start(position))

    def move(self, state: SGLDState, index: int, source: Generator) -> tuple[SGLDState, SGLDInfo]:
        position, temperature = state.position, self.settings.temperature
        step = self.steps.at(state.step, index, position)
        log_density, slope = self.gradient.at(position, index)
        moved = overdamped(position, slope, self.gradient.eta(step.lr), temperature, source)
        return SGLDState(moved, step), SGLDInfo(log_density, step.lr, self.steps.told(step))

    def drawn(self, state: SGLDState) -> Tensor:
        return state.position
