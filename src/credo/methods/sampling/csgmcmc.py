"""Cyclical stochastic-gradient MCMC: big steps find a mode, small ones sample it, again and again.

In every cycle eta falls along a cosine from lr / N to almost 0. The first share of the cycle
explores without noise, the rest is SGHMC at temperature T and gives draws. Draws of few cycles
weigh the modes they found by chance, not by mass.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from credo.core.errors import SettingError
from credo.core.settings import setting
from credo.engine.fit_job import FitJob
from credo.engine.method import methods
from credo.kernels.langevin import cyclical, underdamped
from credo.kernels.target import State
from credo.methods.sampling.parts.chains import Course, Transition
from credo.methods.sampling.parts.density import Density
from credo.methods.sampling.parts.stochastic_gradient import Drift, StochasticSampler


@methods.register("csgmcmc")
@dataclass(frozen=True)
class CSGMCMC(StochasticSampler):
    """SGHMC whose step falls and restarts."""

    name: ClassVar[str] = "csgmcmc"
    summary: ClassVar[str] = (
        "Cyclical SG-MCMC: explore with large steps, sample with small ones, repeat."
    )
    reference: ClassVar[str] = (
        "Zhang, Li, Zhang, Chen and Wilson 2020, Cyclical stochastic gradient MCMC for Bayesian "
        "deep learning."
    )
    lr: ClassVar[float] = 1e-1
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

    num_warmup: int = setting(
        0, "Steps of plain SGHMC before the first cycle, during which point parameters learn.", ge=0
    )
    num_cycles: int = setting(4, "Cycles; num_draws is shared out among them.", ge=1)
    exploration: float = setting(0.8, "Share of a cycle without noise and draws.", ge=0.0, le=0.99)
    friction: float = setting(0.1, "Share of the momentum lost per step.", gt=0.0, le=1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_draws % self.num_cycles:
            raise SettingError(
                f"num_draws={self.num_draws} cannot be shared out among "
                f"num_cycles={self.num_cycles}; use a multiple of it."
            )

    def course(self) -> Cycles:
        """Warm-up, then cycles."""
        return Cycles(
            self.name, self.num_warmup, self.num_draws, self.thin, self.num_cycles, self.exploration
        )

    def learning(self) -> int:
        """The warm-up and the exploration of the first cycle."""
        course = self.course()
        return self.num_warmup + course.period - course.sampling

    def transition(self, density: Density, fit_job: FitJob) -> Transition:
        """Cycles on the posterior."""
        return Steps(density, fit_job, self)


@dataclass(frozen=True)
class Cycles(Course):
    """Draws in the last part of every cycle."""

    num_cycles: int = 1
    exploration: float = 0.0

    @property
    def sampling(self) -> int:
        """Steps of a cycle that give draws."""
        return self.num_draws // self.num_cycles * self.thin

    @property
    def period(self) -> int:
        """Steps of a cycle."""
        return math.ceil(round(self.sampling / (1 - self.exploration), 6))

    def moves(self) -> int:
        """All cycles."""
        return self.num_warmup + self.num_cycles * self.period

    def samples(self, index: int) -> bool:
        """Whether step ``index`` belongs to the sampling part of a cycle."""
        place = index - self.num_warmup
        return place >= 0 and place % self.period >= self.period - self.sampling

    def draw_after(self, index: int) -> int | None:
        """The last steps of every cycle give its draws."""
        cycle, place = divmod(index - self.num_warmup, self.period)
        draw, rest = divmod(place - (self.period - self.sampling) + 1, self.thin)
        return (
            cycle * (self.num_draws // self.num_cycles) + draw - 1
            if self.samples(index) and rest == 0
            else None
        )

    def noted(self, index: int) -> bool:
        """Every draw, and the rest at the same pace."""
        return self.draw_after(index) is not None or (
            not self.samples(index) and (index + 1) % self.thin == 0
        )


class Steps(Drift[CSGMCMC]):
    """CSGMCMC moves of all chains."""

    def __init__(self, density: Density, fit_job: FitJob, sampler: CSGMCMC) -> None:
        super().__init__(density, fit_job, sampler)
        self.course = sampler.course()

    def start(self, position: Tensor, source: torch.Generator) -> State:
        """At rest."""
        return {"position": position, "momentum": torch.zeros_like(position)}

    def go(
        self, state: State, slope: Tensor, index: int, source: torch.Generator
    ) -> tuple[State, State]:
        """One step of the size and temperature of its place in the cycle."""
        sampler = self.sampler
        place = index - sampler.num_warmup
        eta, heat = self.eta, sampler.temperature
        if place >= 0:
            eta *= cyclical(place, self.course.period)
            heat = heat if self.course.samples(index) else 0.0
        position, momentum = underdamped(
            state["position"], state["momentum"], slope, eta, sampler.friction, heat, source
        )
        return {"position": position, "momentum": momentum}, {
            "lr": torch.tensor(eta * self.num_data)
        }
