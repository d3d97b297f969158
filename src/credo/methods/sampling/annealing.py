"""Simulated annealing: a mode of the posterior, by sampling at a temperature that falls to almost
zero.

Hamiltonian moves leave p(w given D)^(1/T) invariant while T falls geometrically; chains cross
barriers while it is hot and stay at a mode when it is cold. The best point that any chain has
visited is the answer: a point estimate like ``map``, less bound to where it starts, and like it
without a variance. As a start for samplers: ``init="annealing"``. State and info of a move are
``CoolingState`` and ``CoolingInfo`` of ``kernels/cooling.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Generator, Tensor

from credo.core.settings import setting
from credo.engine.fit_job import FitJob
from credo.engine.method import Method, methods
from credo.engine.model import Fitted, Model
from credo.kernels.cooling import (
    CoolingInfo,
    CoolingState,
    cooling_move,
    start_cooling,
    temperature_at,
)
from credo.kernels.hamiltonian import Integrator
from credo.kernels.log_density import Point
from credo.methods.sampling.parts.chains import Chains
from credo.methods.sampling.parts.density import Density
from credo.methods.sampling.parts.fitted_alongside import FittedAlongside
from credo.methods.sampling.parts.full_batch import FullBatch
from credo.methods.sampling.parts.run_moves import Moves, SteadySchedule, run_moves


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
    lr: ClassVar[float | None] = 1e-2
    target: ClassVar[str] = "map"
    tolerance: ClassVar[float] = 0.1
    conformance_settings: ClassVar[dict[str, Any]] = {"num_moves": 300}
    exceptions: ClassVar[dict[str, str]] = {
        "conjugate_covariance": "a point estimate has no spread"
    }

    num_moves: int = setting(500, "Moves of every chain in all.", ge=1)
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
        chains = Chains.start(model, self.init, self.num_chains, fit_job)
        density = chains.density
        moves = AnnealingMoves(self, density, fit_job)
        schedule = SteadySchedule(self.num_moves - 1, 1)
        draws = run_moves(self.name, moves, schedule, chains.position, fit_job)
        best = draws[:, 0].to(model.device)
        density.release()
        values = density.points | density.layout.split(
            best[moves.target.log_density(best).argmax()]
        )
        posterior = model.point_posterior({n: values[n].detach().clone() for n in model.sites})
        return Fitted(posterior, density.buffers)


class AnnealingMoves(Moves[CoolingState]):
    """A move of every chain at the temperature of its turn; what is drawn is the best so far."""

    state_type = CoolingState

    def __init__(self, settings: Annealing, density: Density, fit_job: FitJob) -> None:
        self.settings = settings
        self.target = FullBatch.of(density, fit_job.source, fit_job.batch_size)
        self.integrator = Integrator(self.target, settings.compile)
        self.fitted_alongside = FittedAlongside(density, fit_job.lr, settings.num_moves)

    def start(self, position: Tensor, source: Generator) -> CoolingState:
        return start_cooling(self.integrator, position, source)

    def move(
        self, state: CoolingState, index: int, source: Generator
    ) -> tuple[CoolingState, CoolingInfo]:
        settings, position = self.settings, state.point.position
        if self.target.step_alongside(self.fitted_alongside, index, position):
            best_value = self.target.log_density(state.best)
            state = state._replace(point=Point.at(self.target, position), best_value=best_value)
        share = index / settings.num_moves
        temperature = temperature_at(share, settings.hottest, settings.coldest)
        return cooling_move(self.integrator, state, temperature, settings.num_steps, source)

    def drawn(self, state: CoolingState) -> Tensor:
        return state.best
