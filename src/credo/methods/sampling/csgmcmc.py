"""Cyclical stochastic-gradient MCMC: big steps find a mode, small ones sample it, again and again.

In every cycle eta falls along a cosine from lr / N to almost 0. The first share of the cycle
explores without noise, the rest is SGHMC at temperature T and gives draws. Draws of few cycles
weigh the modes they found by chance, not by mass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Generator, Tensor

from credo.core.errors import SettingError
from credo.core.settings import setting
from credo.engine.fit_job import FitJob, Problem
from credo.engine.method import Method, methods
from credo.engine.model import Fitted, Model
from credo.kernels.langevin import cyclical, underdamped
from credo.methods.sampling.parts.chains import or_else, start_chains
from credo.methods.sampling.parts.density import Density
from credo.methods.sampling.parts.fitted_alongside import FittedAlongside
from credo.methods.sampling.parts.lengths import THIN, stochastic_lengths
from credo.methods.sampling.parts.run_moves import CyclicalSchedule, Moves
from credo.methods.sampling.parts.settings import ChainSettings, StochasticGradientSettings
from credo.methods.sampling.parts.step_size import Step, StepSearch
from credo.methods.sampling.parts.stochastic_gradient import StochasticGradient

DRAWS = 100  # of every chain
EXPLORATION, SHORTER = 0.8, 0.5  # shares of a cycle
STEEPEST = 0.25  # eta a at the top of a cycle, from where the curvature may still grow


class CSGMCMCState(NamedTuple):
    """What the next move needs."""

    position: Tensor  #: (C, P)
    momentum: Tensor  #: (C, P)
    step: Step  #: at the top of a cycle


class CSGMCMCInfo(NamedTuple):
    """Diagnostics of a move, per chain ``(C,)`` or for all ``()``."""

    log_density: Tensor
    lr: Tensor
    noise: Tensor | None  #: of batches, where it was measured


@methods.register("csgmcmc")
@dataclass(frozen=True)
class CSGMCMC(Method, StochasticGradientSettings, ChainSettings):
    """SGHMC whose step falls and restarts."""

    name: ClassVar[str] = "csgmcmc"
    summary: ClassVar[str] = (
        "Cyclical SG-MCMC: explore with large steps, sample with small ones, repeat."
    )
    reference: ClassVar[str] = (
        "Zhang, Li, Zhang, Chen and Wilson 2020, Cyclical stochastic gradient MCMC for Bayesian "
        "deep learning."
    )
    takes_epochs: ClassVar[bool] = False
    batch_size: ClassVar[int | None] = 128
    lr: ClassVar[float | None] = 1e-1
    is_sampler: ClassVar[bool] = True
    tolerance: ClassVar[float] = 0.05
    conformance_settings: ClassVar[dict[str, Any]] = {
        "num_warmup": 100,
        "num_draws": 400,
        "num_cycles": 2,
        "exploration": 0.5,
        "thin": 10,
        "batch_size": None,
        "lr": 0.05,
        "num_chains": 16,
    }

    num_warmup: int | None = setting(
        None,
        "Steps of plain SGHMC before the first cycle, during which point parameters learn; None: "
        "none where num_draws is given, else 2,000, or fewer where a step is dear.",
        ge=0,
        kind=int,
    )
    num_cycles: int = setting(4, "Cycles of the step size; num_draws is divided among them.", ge=1)
    exploration: float | None = setting(
        None,
        "Share of a cycle without noise and draws. None: 0.8 where num_draws is given; else 0.5, "
        "since the noise must warm up again what has cooled.",
        ge=0.0,
        le=0.99,
        kind=(int, float),
    )
    friction: float = setting(0.1, "Share of the momentum lost per step.", gt=0.0, le=1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_draws is not None and self.num_draws % self.num_cycles:
            raise SettingError(
                f"num_draws={self.num_draws} cannot be shared out among "
                f"num_cycles={self.num_cycles}; use a multiple of it."
            )

    def schedule(self) -> CyclicalSchedule:
        """Warm-up, then cycles."""
        usual = DRAWS - DRAWS % self.num_cycles
        return CyclicalSchedule(
            or_else(self.num_warmup, 0),
            or_else(self.num_draws, max(usual, self.num_cycles)),
            or_else(self.thin, THIN),
            self.num_cycles,
            EXPLORATION if self.exploration is None else self.exploration,
        )

    def usual_batch_size(self, problem: Problem) -> int | None:
        return problem.batch_of_chains()

    def by_problem(self, problem: Problem) -> dict[str, Any]:
        """As many steps in all as other samplers may take."""
        if not self.settles:
            return {}
        exploration = SHORTER if self.exploration is None else self.exploration
        found = stochastic_lengths(self, problem) | {"exploration": exploration}
        steps = found["num_draws"] * found["thin"] * (1 - exploration)
        thin = min(THIN, max(1, int(steps) // DRAWS))
        draws = min(DRAWS, max(self.num_cycles, int(steps) // thin))
        draws -= draws % self.num_cycles
        return found | {"num_draws": draws, "thin": thin}

    def fit(self, model: Model, fit_job: FitJob) -> Fitted:
        chains = start_chains(model, self, fit_job)
        moves = CSGMCMCMoves(self, chains.density, fit_job)
        draws = chains.run(self.name, moves, self.schedule())
        return chains.fitted(draws)


class CSGMCMCMoves(Moves[CSGMCMCState]):
    """A step of every chain, of the size and temperature of its place in the cycle."""

    state_type = CSGMCMCState

    def __init__(self, settings: CSGMCMC, density: Density, fit_job: FitJob) -> None:
        self.settings, self.schedule = settings, settings.schedule()
        # through the warm-up and the exploration of the first cycle
        warmup = self.schedule.num_warmup
        until = warmup + self.schedule.period - self.schedule.sampling
        alongside = FittedAlongside(density, settings.point_lr, until)
        if fit_job.settles and warmup:  # without the noise of draws, that of y would be too small
            alongside = FittedAlongside.in_warmup(density, settings.point_lr, warmup)
        self.gradient = StochasticGradient(density, fit_job, settings.num_chains, alongside)
        self.fitted_alongside = alongside
        heating = 1 / (1 - (1 - settings.friction) ** 2)
        self.steps = StepSearch(density, fit_job, until, STEEPEST, heating)

    def start(self, position: Tensor, source: Generator) -> CSGMCMCState:
        """At rest."""
        return CSGMCMCState(position, torch.zeros_like(position), self.steps.start(position))

    def move(
        self, state: CSGMCMCState, index: int, source: Generator
    ) -> tuple[CSGMCMCState, CSGMCMCInfo]:
        settings, (position, momentum, step) = self.settings, state
        step = self.steps.at(step, index, position)
        log_density, slope = self.gradient.at(position, index)
        place = index - self.schedule.num_warmup
        eta, temperature = self.gradient.eta(step.lr), settings.temperature
        if place >= 0:
            eta *= cyclical(place, self.schedule.period)
            temperature = temperature if self.schedule.samples(index) else 0.0
        moved = underdamped(position, momentum, slope, eta, settings.friction, temperature, source)
        lr = torch.tensor(eta * self.gradient.num_data)
        return CSGMCMCState(*moved, step), CSGMCMCInfo(log_density, lr, self.steps.told(step))

    def drawn(self, state: CSGMCMCState) -> Tensor:
        return state.position
