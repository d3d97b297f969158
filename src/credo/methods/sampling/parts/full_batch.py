"""What samplers that see all data at every move share: trajectories, adaptation, and fitting what
is not sampled.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from credo.core.settings import setting
from credo.engine.fit_job import FitJob
from credo.kernels.hamiltonian import first_step
from credo.kernels.leapfrog import Integrator
from credo.kernels.metric import check_dense, unit
from credo.kernels.target import Point, State
from credo.kernels.warmup import WarmUp
from credo.methods.sampling.parts.chains import Sampler
from credo.methods.sampling.parts.density import Density, FullBatch
from credo.methods.sampling.parts.fitted_alongside import LEARNING, Fitting, Free

S = TypeVar("S", bound="FullBatchSampler")


class Mover(Fitting, Generic[S]):
    """Moves on the full-batch target; a subclass says how (``go``)."""

    integrator: Integrator

    def __init__(self, density: Density, fit_job: FitJob, sampler: S) -> None:
        self.sampler = sampler
        if sampler.dense:
            check_dense(density.numel)
        self.target = FullBatch.of(density, fit_job.source, fit_job.batch_size)
        self.free = Free(density, fit_job.lr, int(LEARNING * sampler.num_warmup))
        self.warmup = WarmUp(sampler.num_warmup, sampler.target_rate, sampler.dense)

    def first(self, point: Point, source: torch.Generator) -> State:
        """Where the adaptation of trajectories starts."""
        guess = torch.tensor(0.1, dtype=torch.float64, device=point.position.device)
        step = first_step(
            self.integrator, point, unit(point.position, self.warmup.dense), source, guess
        )
        return self.warmup.start(point.position, step)

    def adapt(
        self, state: State, index: int, point: Point, rate: Tensor, source: torch.Generator
    ) -> State:
        """Take in a move; a new metric needs a new step size."""
        state = self.warmup.learn(state, index, point.position, rate)
        if not self.warmup.settles(index):
            return state
        return self.warmup.restart(
            state,
            first_step(
                self.integrator, point, state["scale"], source, state["log_step_mean"].exp()
            ),
        )

    def move(self, state: State, index: int, source: torch.Generator) -> tuple[State, State]:
        """One move, after a step of what is free."""
        if self.free.learns(index):
            kept = self.kept(state)
            self.free.learn(lambda optimizer: self.target.learn(kept, optimizer))
            state = state | self.evaluate(state["position"])
        return self.go(state, index, source)

    def evaluate(self, position: Tensor) -> State:
        """What a move needs of the target at ``position``."""
        return Point.at(self.target, position).state()

    @abstractmethod
    def go(self, state: State, index: int, source: torch.Generator) -> tuple[State, State]:
        """One move on the target as it is."""


@dataclass(frozen=True)
class FullBatchSampler(Sampler):
    """All data at every move; ``batch_size`` only cuts the sums over data to fit in memory, and
    ``lr`` serves point parameters.
    """

    lr: ClassVar[float] = 1e-2
    fidelity: ClassVar[str] = "exact in the limit"

    target_rate: float = setting(
        0.8, "Acceptance rate that the step size is adapted to.", gt=0.0, le=0.99
    )
    mass: str = setting(
        "diagonal",
        "Metric learned in the warm-up: of each parameter, or of all jointly.",
        choices=("diagonal", "dense"),
    )

    @property
    def dense(self) -> bool:
        """Whether the metric is."""
        return self.mass == "dense"


@dataclass(frozen=True)
class Trajectories(FullBatchSampler):
    """Samplers whose moves are trajectories."""

    compile: bool = setting(
        False,
        "Compile the trajectory's step, gradient included (on a GPU also capture it as a graph).",
    )

    def integrator(self, target: FullBatch) -> Integrator:
        """Leapfrog on the target."""
        return Integrator(target, self.compile)
