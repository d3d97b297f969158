"""Preconditioned SGLD: Langevin steps with a step size for every parameter, learned from the size
of its gradients.

w <- w - eta G dU/dw + sqrt(2 eta T G) noise, G = 1 / (sqrt(v) + eps) with v a running mean of
squared gradients, scaled to mean 1. While G depends on the path an extra drift would be needed to
sample the right distribution; here G is learned in the warm-up and fixed after it, so that none is.
Helps where parameters differ in scale; not where directions that mix them do.
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


class PSGLDState(NamedTuple):
    """What the next move needs."""

    position: Tensor  #: (C, P)
    squares: Tensor  #: (P,) v, before the correction of its start at zero
    scale: Tensor  #: (P,) G, one for all chains
    step: Step


class PSGLDInfo(NamedTuple):
    """Diagnostics of a move, per chain ``(C,)`` or for all ``()``."""

    log_density: Tensor
    lr: Tensor
    noise: Tensor | None  #: of batches, where it was measured


@methods.register("psgld")
@dataclass(frozen=True)
class PSGLD(Method, StochasticGradientSettings, ChainSettings):
    """Langevin steps on batches, rescaled by parameter."""

    name: ClassVar[str] = "psgld"
    summary: ClassVar[str] = "SGLD with a step size per parameter, learned in the warm-up."
    reference: ClassVar[str] = (
        "Li, Chen, Carlson and Carin 2016, Preconditioned stochastic gradient Langevin dynamics."
    )
    takes_epochs: ClassVar[bool] = False
    batch_size: ClassVar[int | None] = 128
    lr: ClassVar[float | None] = 1e-2
    is_sampler: ClassVar[bool] = True
    tolerance: ClassVar[float] = 0.05
    conformance_settings: ClassVar[dict[str, Any]] = CONFORMANCE

    memory: float = setting(
        0.99, "Share of the running mean of squared gradients kept per step.", ge=0.0, le=0.99999
    )
    eps: float = setting(
        0.1,
        "Damping of the preconditioner, as a share of the root mean square gradient over all "
        "parameters.",
        gt=0.0,
    )

    def usual_batch_size(self, problem: Problem) -> int | None:
        return problem.batch_of_chains()

    def by_problem(self, problem: Problem) -> dict[str, Any]:
        return stochastic_lengths(self, problem) if self.settles else {}

    def fit(self, model: Model, fit_job: FitJob) -> Fitted:
        chains = start_chains(model, self, fit_job)
        moves = PSGLDMoves(self, chains.density, fit_job)
        draws = chains.run(self.name, moves, stochastic_schedule(self))
        return chains.fitted(draws)


class PSGLDMoves(Moves[PSGLDState]):
    """A rescaled Langevin step of every chain."""

    state_type = PSGLDState

    def __init__(self, settings: PSGLD, density: Density, fit_job: FitJob) -> None:
        self.settings = settings
        warmup = stochastic_schedule(settings).num_warmup
        alongside = FittedAlongside.in_warmup(density, settings.point_lr, warmup)
        self.gradient = StochasticGradient(density, fit_job, settings.num_chains, alongside)
        self.fitted_alongside = alongside
        self.num_warmup = warmup
        self.steps = StepSearch(density, fit_job, warmup, STEEPEST, 0.5)

    def start(self, position: Tensor, source: Generator) -> PSGLDState:
        zeros = torch.zeros_like(position[0])
        return PSGLDState(position, zeros, torch.ones_like(zeros), self.steps.start(position))

    def move(
        self, state: PSGLDState, index: int, source: Generator
    ) -> tuple[PSGLDState, PSGLDInfo]:
        settings, gradient, (position, squares, scale, step) = self.settings, self.gradient, state
        log_density, slope = gradient.at(position, index)
        if index < self.num_warmup:
            memory, mean_slope = settings.memory, slope / gradient.num_data
            squares = memory * squares + (1 - memory) * mean_slope.square().mean(0)
            size = (squares / (1 - memory ** (index + 1))).sqrt()
            scale = 1 / (size + settings.eps * size.square().mean().sqrt().clamp_min(1e-30))
            scale = scale / scale.mean()
        step = self.steps.at(step, index, position, scale)
        eta, temperature = gradient.eta(step.lr), settings.temperature
        moved = overdamped(position, slope, eta, temperature, source, scale)
        return PSGLDState(moved, squares, scale, step), PSGLDInfo(
            log_density, step.lr, self.steps.told(step)
        )

    def drawn(self, state: PSGLDState) -> Tensor:
        return state.position
