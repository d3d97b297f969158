"""Stein variational gradient descent: a set of networks that descend together and keep each other
apart.

Every particle moves along phi, the average over particles of kernel-weighted gradients of log p(D,
w) and of the kernel's own slope, by Adam. One particle is MAP, infinitely many are the posterior.
In many dimensions distances between particles are nearly equal and the repulsion too weak:
variances come out too small (use ``kernel="imq"``, and check against ``hmc``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from credo.core.errors import SettingError
from credo.core.settings import setting
from credo.core.tree import take
from credo.engine.fit_job import FitJob, Fitted
from credo.engine.method import Method, methods
from credo.engine.model import Model
from credo.engine.schedules import decays
from credo.kernels.stein import kernels, stein_force
from credo.kernels.target import State
from credo.methods.sampling.parts.chains import Course, of_draws, run_chains, score, start_values
from credo.methods.sampling.parts.density import Density
from credo.methods.sampling.parts.fitted_alongside import Fitting, Free
from credo.methods.sampling.parts.stochastic_gradient import Feed


@methods.register("svgd")
@dataclass(frozen=True)
class SVGD(Method):
    """Particles under Stein forces."""

    name: ClassVar[str] = "svgd"
    summary: ClassVar[str] = "Stein variational gradient descent: particles that repel each other."
    reference: ClassVar[str] = "Liu and Wang 2016, Stein variational gradient descent."
    lr: ClassVar[float] = 1e-2
    tolerance: ClassVar[float] = 0.12  # a hundred particles have four fifths of the variance
    conformance_settings: ClassVar[dict[str, Any]] = {
        "epochs": 800,
        "batch_size": None,
        "lr": 0.05,
        "particles": 100,
    }

    particles: int = setting(20, "Networks in the set.", ge=1)
    kernel: str = setting(
        "rbf",
        "Kernel: Gaussian, or inverse multiquadric with longer tails.",
        choices=("rbf", "imq"),
    )
    lr_schedule: str = setting(
        "cosine", "Course of the learning rate.", choices=("constant", "cosine")
    )
    init: Any = setting(
        "random",
        "Start of each particle: 'random', 'prior', or a state dict whose tensors may have a "
        "leading axis of particles.",
        kind=(str, Mapping),
        choices=("random", "prior"),
    )

    def fit(self, model: Model, fit_job: FitJob) -> Fitted:
        """Move the particles for all epochs."""
        starts = start_values(model, self.init, self.particles, fit_job.seed)
        density = Density(model, {n: v[0] for n, v in starts.items()})
        swarm = Swarm(density, fit_job, self)
        flat = density.layout.join({n: starts[n] for n in model.random})
        if self.particles > 1 and bool((flat == flat[0]).all()):
            raise SettingError(
                f"svgd: all {self.particles} particles start at one place and would stay "
                "together; give each its own in init."
            )
        course = Rounds(self.name, swarm.moves - 1, 1, swarm.feed.count)
        kept = run_chains(course, swarm, flat, fit_job, lambda kept: score(density, kept, fit_job))
        return of_draws(density, kept.to(model.device, copy=fit_job.run is not None), 1)


@dataclass(frozen=True)
class Rounds(Course):
    """One draw at the end; a row of the history per epoch of ``thin`` steps."""

    def moves(self) -> int:
        """The draw comes with the last."""
        return self.num_warmup + 1

    def draw_after(self, index: int) -> int | None:
        """At the end of every epoch, so that a callback may stop there; the last one counts."""
        return 0 if (index + 1) % self.thin == 0 else None

    def noted(self, index: int) -> bool:
        """Every epoch."""
        return (index + 1) % self.thin == 0

    def number(self, index: int) -> int:
        """Epochs, not steps."""
        return (index + 1) // self.thin - 1


class Swarm(Fitting):
    """SVGD steps of all particles on one batch."""

    def __init__(self, density: Density, fit_job: FitJob, method: SVGD) -> None:
        self.density, self.num_data, self.lr, self.method = (
            density,
            fit_job.source.num_data,
            fit_job.lr,
            method,
        )
        self.feed = Feed(density, fit_job, 1)
        self.moves = fit_job.epochs * self.feed.count
        self.free = Free(density, fit_job.lr, self.moves)

    def start(self, position: Tensor, source: torch.Generator) -> State:
        """At rest, for Adam."""
        return {
            "position": position,
            "first": torch.zeros_like(position),
            "second": torch.zeros_like(position),
        }

    def move(self, state: State, index: int, source: torch.Generator) -> tuple[State, State]:
        """One step along the Stein force of a batch, with Adam's scaling."""
        batch = take(self.feed.at(index), 0)
        factor = self.num_data / len(batch[1])
        position = state["position"]
        value, slope = self.density.slope(position, [batch], factor)
        push = stein_force(position, slope, kernels[self.method.kernel])
        first = 0.9 * state["first"] + 0.1 * push
        second = 0.999 * state["second"] + 0.001 * push.square()
        lr = self.lr * decays[self.method.lr_schedule](index / self.moves)
        size = (
            lr
            * (first / (1 - 0.9 ** (index + 1)))
            / ((second / (1 - 0.999 ** (index + 1))).sqrt() + 1e-8)
        )
        if self.free.learns(index):
            self.free.learn(
                lambda optimizer: self.density.learn(position, [batch], optimizer, factor)
            )
        return {"position": position + size, "first": first, "second": second}, {
            "log_density": value
        }
