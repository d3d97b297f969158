"""Stein variational gradient descent: a set of networks that descend together and repel each other.

Every particle moves along phi, the average over particles of kernel-weighted gradients of log p(D,
w) and of the kernel's own slope, by Adam. One particle is MAP, infinitely many are the posterior.
In many dimensions distances between particles are nearly equal and the repulsion too weak:
variances come out too small (use ``kernel="imq"``, and check against ``hmc``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Generator, Tensor

from credo.core.errors import SettingError
from credo.core.settings import setting
from credo.core.tree import take
from credo.engine.fit_job import FitJob, Problem
from credo.engine.method import Method, methods
from credo.engine.model import Fitted, Model
from credo.engine.training_loop import decays
from credo.kernels.adam import AdamAverages, adam_step, start_adam
from credo.kernels.stein import kernels, stein_force
from credo.methods.sampling.parts.chains import Chains
from credo.methods.sampling.parts.density import Density
from credo.methods.sampling.parts.fitted_alongside import FittedAlongside
from credo.methods.sampling.parts.run_moves import EpochSchedule, Moves
from credo.methods.sampling.parts.stochastic_gradient import ChainBatches


class SVGDState(NamedTuple):
    """What the next move needs."""

    position: Tensor  #: (n, P)
    averages: AdamAverages


class SVGDInfo(NamedTuple):
    """Diagnostics of a move, per particle ``(n,)``."""

    log_density: Tensor


PARTICLES = ((200, 200), (1_000, 100))  #: up to so many weights, so many particles
STEPS = 3_000


@methods.register("svgd")
@dataclass(frozen=True)
class SVGD(Method):
    """Particles under Stein forces."""

    name: ClassVar[str] = "svgd"
    summary: ClassVar[str] = "Stein variational gradient descent: particles that repel each other."
    reference: ClassVar[str] = "Liu and Wang 2016, Stein variational gradient descent."
    lr: ClassVar[float | None] = 1e-2
    fixed_length: ClassVar[bool] = True
    tolerance: ClassVar[float] = 0.12  # a hundred particles have four fifths of the variance
    conformance_settings: ClassVar[dict[str, Any]] = {
        "epochs": 800,
        "batch_size": None,
        "lr": 0.05,
        "num_particles": 100,
    }

    num_particles: int | None = setting(
        None,
        "Networks in the set; None takes 200 of up to 200 weights, 100 of up to 1,000 and 20 "
        "of more.",
        ge=1,
        kind=int,
        formerly="particles",
    )
    kernel: str = setting(
        "rbf",
        "Kernel: Gaussian, or inverse multiquadric with longer tails.",
        choices=("rbf", "imq"),
    )
    lr_schedule: str = setting("cosine", "Learning-rate schedule.", choices=("constant", "cosine"))
    init: Any = setting(
        "random",
        "Start of each particle: 'random', 'prior', or a state dict whose tensors may have a "
        "leading axis of particles.",
        kind=(str, Mapping),
        choices=("random", "prior"),
    )

    def by_problem(self, problem: Problem) -> dict[str, Any]:
        """A few particles understate the spread of many weights whatever their number; of few
        weights a hundred have four fifths of the variance.
        """
        count = next((n for most, n in PARTICLES if problem.num_weights <= most), 20)
        return {"num_particles": count}

    def usual_batch_size(self, problem: Problem) -> int | None:
        return problem.chain_batch_size(128)

    def usual_steps(self, problem: Problem, batch_size: int | None) -> int:
        return min(problem.num_steps(batch_size), STEPS)

    def fit(self, model: Model, fit_job: FitJob) -> Fitted:
        assert self.num_particles is not None  # by_problem has set it
        particles = Chains.start(model, self.init, self.num_particles, fit_job)
        moves = SVGDMoves(self, particles.density, fit_job)
        if self.num_particles > 1 and bool((particles.position == particles.position[0]).all()):
            raise SettingError(
                f"svgd: all {self.num_particles} particles start at one place and would stay "
                "together; give each its own in init."
            )
        schedule = EpochSchedule(moves.num_moves - 1, 1, moves.batches.count)
        draws = particles.run(self.name, moves, schedule)
        return particles.fitted(draws, num_chains=1)


class SVGDMoves(Moves[SVGDState]):
    """One step of all particles along the Stein force of a batch, by Adam."""

    state_type = SVGDState

    def __init__(self, settings: SVGD, density: Density, fit_job: FitJob) -> None:
        self.settings, self.density = settings, density
        self.num_data, self.lr = fit_job.source.num_data, fit_job.lr
        self.batches = ChainBatches(density, fit_job, 1)  # one for all
        self.num_moves = fit_job.epochs * self.batches.count
        self.fitted_alongside = FittedAlongside(density, fit_job.lr, self.num_moves)

    def start(self, position: Tensor, source: Generator) -> SVGDState:
        return SVGDState(position, start_adam(position))

    def move(self, state: SVGDState, index: int, source: Generator) -> tuple[SVGDState, SVGDInfo]:
        position, averages = state
        batch = take(self.batches.at(index), 0)
        factor = self.num_data / len(batch[1])
        log_density, slope = self.density.slope(position, [batch], factor)
        force = stein_force(position, slope, kernels[self.settings.kernel])
        lr = self.lr * decays[self.settings.lr_schedule](index / self.num_moves)
        step, averages = adam_step(averages, force, lr, index)
        self.fitted_alongside.step(
            index,
            lambda optimizer: self.density.fit_alongside(position, [batch], optimizer, factor),
        )
        return SVGDState(position + step, averages), SVGDInfo(log_density)

    def drawn(self, state: SVGDState) -> Tensor:
        return state.position
