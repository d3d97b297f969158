"""Stochastic gradient Hamiltonian Monte Carlo: momentum descent on batches, with friction and the
noise that balances it.

dw = v dt, dv = -dU/dw dt - c v dt + sqrt(2 c T) dW, discretised by a splitting whose positions are
exact for Gaussian targets at any stable step (kick, half drift, friction and noise, half drift).
Step eta = lr / N; 1 - friction is the momentum. The noise of batches adds variance of order eta.
Fails between modes, and where lr is beyond the stable step of the steepest direction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Generator, Tensor

from credo.core.settings import setting
from credo.engine.fit_job import FitJob, Problem
from credo.engine.method import Method, methods
from credo.engine.model import Fitted, Model
from credo.kernels.langevin import underdamped
from credo.kernels.log_density import normal
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

STEEPEST = 0.25  # eta a


class SGHMCState(NamedTuple):
    """What the next move needs."""

    position: Tensor  #: (C, P)
    momentum: Tensor  #: (C, P)
    step: Step


class SGHMCInfo(NamedTuple):
    """Diagnostics of a move, per chain ``(C,)`` or for all ``()``."""

    log_density: Tensor
    lr: Tensor
    noise: Tensor | None  #: of batches, where it was measured


@methods.register("sghmc")
@dataclass(frozen=True)
class SGHMC(Method, StochasticGradientSettings, ChainSettings):
    """Momentum with friction and noise on batches."""

    name: ClassVar[str] = "sghmc"
    summary: ClassVar[str] = (
        "Stochastic gradient HMC: momentum descent with friction and matching noise."
    )
    reference: ClassVar[str] = (
        "Chen, Fox and Guestrin 2014, Stochastic gradient HMC; Leimkuhler and Matthews 2013 for "
        "the splitting."
    )
    takes_epochs: ClassVar[bool] = False
    batch_size: ClassVar[int | None] = 128
    lr: ClassVar[float | None] = 1e-2
    is_sampler: ClassVar[bool] = True
    tolerance: ClassVar[float] = 0.05
    conformance_settings: ClassVar[dict[str, Any]] = CONFORMANCE

    friction: float = setting(0.1, "Share of the momentum lost per step.", gt=0.0, le=1.0)

    def usual_batch_size(self, problem: Problem) -> int | None:
        return problem.batch_of_chains()

    def by_problem(self, problem: Problem) -> dict[str, Any]:
        return stochastic_lengths(self, problem) if self.settles else {}

    def fit(self, model: Model, fit_job: FitJob) -> Fitted:
        chains = start_chains(model, self, fit_job)
        moves = SGHMCMoves(self, chains.density, fit_job)
        draws = chains.run(self.name, moves, stochastic_schedule(self))
        return chains.fitted(draws)


class SGHMCMoves(Moves[SGHMCState]):
    """A step of the splitting of every chain."""

    state_type = SGHMCState

    def __init__(self, settings: SGHMC, density: Density, fit_job: FitJob) -> None:
        self.settings = settings
        warmup = stochastic_schedule(settings).num_warmup
        alongside = FittedAlongside.in_warmup(density, settings.point_lr, warmup)
        self.gradient = StochasticGradient(density, fit_job, settings.num_chains, alongside)
        self.fitted_alongside = alongside
        heating = 1 / (1 - (1 - settings.friction) ** 2)
        self.steps = StepSearch(density, fit_job, warmup, STEEPEST, heating)

    def start(self, position: Tensor, source: Generator) -> SGHMCState:
        """Momenta of the stationary size."""
        step = self.steps.at(self.steps.start(position), 0, position)
        std = (self.gradient.eta(step.lr) * self.settings.temperature) ** 0.5
        return SGHMCState(position, std * normal(position, source), step)

    def move(
        self, state: SGHMCState, index: int, source: Generator
    ) -> tuple[SGHMCState, SGHMCInfo]:
        settings, (position, momentum, step) = self.settings, state
        step = self.steps.at(step, index, position) if index else step
        log_density, slope = self.gradient.at(position, index)
        eta, temperature = self.gradient.eta(step.lr), settings.temperature
        moved = underdamped(position, momentum, slope, eta, settings.friction, temperature, source)
        return SGHMCState(*moved, step), SGHMCInfo(log_density, step.lr, self.steps.told(step))

    def drawn(self, state: SGHMCState) -> Tensor:
        return state.position
