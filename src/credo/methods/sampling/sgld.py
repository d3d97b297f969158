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
from credo.methods.sampling.parts.chains import start_chains
from credo.methods.sampling.parts.density import Density
from credo.methods.sampling.parts.fitted_alongside import FittedAlongside
from credo.methods.sampling.parts.run_moves import Moves, SteadySchedule
from credo.methods.sampling.parts.settings import (
    CONFORMANCE,
    ChainSettings,
    StochasticGradientSettings,
)
from credo.methods.sampling.parts.stochastic_gradient import StochasticGradient


class SGLDState(NamedTuple):
    """What the next move needs."""

    position: Tensor  #: (C, P)


class SGLDInfo(NamedTuple):
    """Diagnostics of a move, per chain ``(C,)``."""

    log_density: Tensor


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
        return problem.chain_batch_size(128)

    def fit(self, model: Model, fit_job: FitJob) -> Fitted:
        chains = start_chains(model, self, fit_job)
        moves = SGLDMoves(self, chains.density, fit_job)
        schedule = SteadySchedule(self.num_warmup, self.num_draws, self.thin)
        draws = chains.run(self.name, moves, schedule)
        return chains.fitted(draws)


class SGLDMoves(Moves[SGLDState]):
    """A Langevin step of every chain."""

    state_type = SGLDState

    def __init__(self, settings: SGLD, density: Density, fit_job: FitJob) -> None:
        self.settings = settings
        alongside = FittedAlongside.in_warmup(density, settings.point_lr, settings.num_warmup)
        self.gradient = StochasticGradient(density, fit_job, settings.num_chains, alongside)
        self.fitted_alongside = alongside

    def start(self, position: Tensor, source: Generator) -> SGLDState:
        return SGLDState(position)

    def move(self, state: SGLDState, index: int, source: Generator) -> tuple[SGLDState, SGLDInfo]:
        log_density, slope = self.gradient.at(state.position, index)
        temperature = self.settings.temperature
        moved = overdamped(state.position, slope, self.gradient.eta, temperature, source)
        return SGLDState(moved), SGLDInfo(log_density)

    def drawn(self, state: SGLDState) -> Tensor:
        return state.position
