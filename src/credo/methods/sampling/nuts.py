"""The no-U-turn sampler: Hamiltonian Monte Carlo whose trajectories end when they turn back, so
that no length is to be chosen.

Each chain's trajectory doubles until it turns; the draw is picked along it by weight. Chains run
together and wait for the longest trajectory among them: with many chains ``hmc``, whose
trajectories are equally long, is faster. Fails as every sampler does between modes that barriers
separate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Generator, Tensor

from credo.core.settings import setting
from credo.engine.fit_job import FitJob, Problem
from credo.engine.method import Method, methods
from credo.engine.model import Fitted, Model
from credo.kernels.hamiltonian import Integrator, TrajectoryInfo
from credo.kernels.log_density import Point
from credo.kernels.nuts_tree import nuts
from credo.kernels.warmup import Adaptation, per_chain
from credo.methods.sampling.parts.chains import full_batch_schedule, start_chains, warm_up
from credo.methods.sampling.parts.density import Density
from credo.methods.sampling.parts.fitted_alongside import FittedAlongside
from credo.methods.sampling.parts.full_batch import FullBatch
from credo.methods.sampling.parts.lengths import LR, MAX_DEPTH, alongside_lr, full_batch_lengths
from credo.methods.sampling.parts.run_moves import Moves
from credo.methods.sampling.parts.settings import ChainSettings, CompileSettings, FullBatchSettings

TREE = 1.6  # gradients that a step with its share of the tree is worth


class NUTSState(NamedTuple):
    """What the next move needs."""

    point: Point
    adaptation: Adaptation


class NUTSInfo(NamedTuple):
    """Diagnostics of a move, per chain ``(C,)`` or for all ``()``."""

    trajectory: TrajectoryInfo  #: log density, energy, divergence, acceptance
    step_size: Tensor
    steps: Tensor
    depth: Tensor


@methods.register("nuts")
@dataclass(frozen=True)
class NUTS(Method, CompileSettings, FullBatchSettings, ChainSettings):
    """Trajectories that end by themselves."""

    name: ClassVar[str] = "nuts"
    summary: ClassVar[str] = "No-U-turn sampler: trajectories that end when they turn back."
    reference: ClassVar[str] = (
        "Hoffman and Gelman 2014, The no-U-turn sampler; Betancourt 2017, A conceptual "
        "introduction to HMC."
    )
    takes_epochs: ClassVar[bool] = False
    batch_size: ClassVar[int | None] = None
    lr: ClassVar[float | None] = 1e-2
    is_sampler: ClassVar[bool] = True
    fidelity: ClassVar[str] = "exact in the limit"
    conformance_settings: ClassVar[dict[str, Any]] = {"num_warmup": 150, "num_draws": 300}

    max_depth: int | None = setting(
        None,
        "Doublings of a trajectory at most: 2^max_depth - 1 steps; None: 10, or fewer where a "
        "gradient is dear.",
        ge=1,
        le=20,
        kind=int,
    )

    def by_problem(self, problem: Problem) -> dict[str, Any]:
        return full_batch_lengths(self, problem) if self.settles else {}

    def usual_lr(self, problem: Problem) -> float:
        return alongside_lr(self, problem) if self.settles else LR

    def fit(self, model: Model, fit_job: FitJob) -> Fitted:
        chains = start_chains(model, self, fit_job)
        moves = NUTSMoves(self, chains.density, fit_job)
        draws = chains.run(self.name, moves, full_batch_schedule(self))
        return chains.fitted(draws)


class NUTSMoves(Moves[NUTSState]):
    """A tree of every chain."""

    state_type = NUTSState

    def __init__(self, settings: NUTS, density: Density, fit_job: FitJob) -> None:
        self.settings, self.warmup = settings, warm_up(settings)
        self.target = FullBatch.of(density, fit_job.source, fit_job.batch_size)
        self.integrator = Integrator(self.target, settings.compile)
        self.fitted_alongside = FittedAlongside.in_warmup(
            density, fit_job.lr, self.warmup.num_warmup
        )

    def start(self, position: Tensor, source: Generator) -> NUTSState:
        point = Point.at(self.target, position)
        return NUTSState(point, self.warmup.start_trajectories(self.integrator, point, source))

    def move(self, state: NUTSState, index: int, source: Generator) -> tuple[NUTSState, NUTSInfo]:
        point, adaptation = state
        if self.target.step_alongside(self.fitted_alongside, index, point.position):
            point = Point.at(self.target, point.position)
        step = self.warmup.step(adaptation, index)
        steps, max_depth = per_chain(step, point.position), self.settings.max_depth or MAX_DEPTH
        moved = nuts(self.integrator, point, steps, adaptation.scale, max_depth, source)
        adaptation = self.warmup.adapt_trajectories(
            self.integrator, adaptation, index, moved.point, moved.rate, source
        )
        info = NUTSInfo(moved.info, step, moved.steps, moved.depth)
        return NUTSState(moved.point, adaptation), info

    def gradients(self, info: NUTSInfo) -> float:
        """Chains wait for the longest trajectory, and its tree takes time as well."""
        return TREE * float(info.steps.max())

    def drawn(self, state: NUTSState) -> Tensor:
        return state.point.position
