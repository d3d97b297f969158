"""Simulated annealing: a mode of the posterior, by sampling at a temperature that falls to almost
zero.

Hamiltonian moves leave p(w given D)^(1/T) invariant while T falls geometrically; chains cross
barriers while it is hot and settle when it is cold. The best point that any chain has visited is
the answer: a point estimate like ``map``, less bound to where it starts. It has no spread. As a
start for samplers: ``init="annealing"``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from credo.core.settings import setting
from credo.engine.fit_job import FitJob, Fitted
from credo.engine.method import Method, methods
from credo.engine.model import Model
from credo.kernels.annealing import cooling, move, start
from credo.kernels.leapfrog import Integrator
from credo.kernels.target import Point, State
from credo.methods.sampling.parts.chains import Course, run_chains, start_values
from credo.methods.sampling.parts.density import Density, FullBatch
from credo.methods.sampling.parts.fitted_alongside import Fitting, Free


@methods.register("annealing")
@dataclass(frozen=True)
class Annealing(Method):
    """Hamiltonian moves, colder and colder."""

    name: ClassVar[str] = "annealing"
    summary: ClassVar[str] = (
        "Simulated annealing to a mode: a point estimate that crosses barriers on its way."
    )
    reference: ClassVar[str] = (
        "Kirkpatrick, Gelatt and Vecchi 1983, Optimization by simulated annealing."
    )
    takes_epochs: ClassVar[bool] = False
    batch_size: ClassVar[int | None] = None
    lr: ClassVar[float] = 1e-2
    target: ClassVar[str] = "map"
    tolerance: ClassVar[float] = 0.1
    conformance_settings: ClassVar[dict[str, Any]] = {"num_moves": 300}
    exceptions: ClassVar[dict[str, str]] = {
        "conjugate_covariance": "a point estimate has no spread"
    }

    num_moves: int = setting(500, "Moves in all.", ge=1)
    num_steps: int = setting(10, "Leapfrog steps of a move.", ge=1)
    num_chains: int = setting(4, "Chains, of which the best ends as the answer.", ge=1)
    hottest: float = setting(10.0, "Temperature at the start; 1 is the posterior's.", gt=0.0)
    coldest: float = setting(1e-4, "Temperature at the end.", gt=0.0)
    init: Any = setting(
        "random",
        "Start of each chain: 'random', 'prior', 'pretrained', or a state dict.",
        kind=(str, Mapping),
        choices=("random", "prior", "pretrained"),
    )
    compile: bool = setting(False, "Compile the trajectory's step, gradient included.")

    def fit(self, model: Model, fit_job: FitJob) -> Fitted:
        """Cool down and keep the best point."""
        starts = start_values(model, self.init, self.num_chains, fit_job.seed)
        density = Density(model, {n: v[0] for n, v in starts.items()})
        cooler = Cooler(density, fit_job, self)
        flat = density.layout.join({n: starts[n] for n in model.random})
        best = run_chains(Course(self.name, self.num_moves - 1, 1), cooler, flat, fit_job)[:, 0].to(
            model.device
        )
        prior, fit = cooler.target.parts(best)
        density.release()
        values = density.points | density.layout.split(best[(prior + fit).argmax()])
        return Fitted(
            model.point_posterior({n: values[n].detach().clone() for n in model.sites}),
            density.buffers,
        )


class Cooler(Fitting):
    """Moves at the temperature of their turn."""

    def __init__(self, density: Density, fit_job: FitJob, method: Annealing) -> None:
        self.method = method
        self.target = FullBatch.of(density, fit_job.source, fit_job.batch_size)
        self.integrator = Integrator(self.target, method.compile)
        self.free = Free(density, fit_job.lr, method.num_moves)

    def start(self, position: Tensor, source: torch.Generator) -> State:
        """Evaluate the target and find a first step size."""
        return start(self.integrator, position, source)

    def move(self, state: State, index: int, source: torch.Generator) -> tuple[State, State]:
        """One move; what is free is fitted along, and what was best is valued anew."""
        if self.free.learns(index):
            position = state["position"]
            self.free.learn(lambda optimizer: self.target.learn(position, optimizer))
            prior, fit = self.target.parts(state["best"])
            state = state | Point.at(self.target, position).state() | {"best_value": prior + fit}
        temperature = cooling(
            index / self.method.num_moves, self.method.hottest, self.method.coldest
        )
        return move(self.integrator, state, temperature, self.method.num_steps, source)

    def kept(self, state: State) -> Tensor:
        """The best points so far."""
        return state["best"]
