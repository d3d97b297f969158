"""MultiSWAG: a SWAG Gaussian around each of several modes, q(w) = 1/K sum_k q_k(w).

An ensemble finds different modes and SWAG adds the spread around each. All members train at once.
What is said of ``swag`` holds for every one of them; their weights are equal, whatever the mass of
their modes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from credo.core.settings import setting
from credo.engine.fit_job import FitJob, Problem
from credo.engine.method import Method, methods
from credo.engine.model import Fitted, Model
from credo.engine.training_loop import DescentSettings, train
from credo.methods.ensembles.parts.members_fit import MemberSettings, start_members, step_maker
from credo.methods.ensembles.parts.members_step import members_optimizer
from credo.methods.ensembles.parts.swag_fit import (
    STEPS,
    SwagSettings,
    gathered_moments,
    swag_posterior,
    swag_schedule,
)


@methods.register("multiswag")
@dataclass(frozen=True)
class MultiSWAG(Method, SwagSettings, MemberSettings, DescentSettings):
    """Gaussians along several paths."""

    name: ClassVar[str] = "multiswag"
    summary: ClassVar[str] = (
        "MultiSWAG: a mixture of SWAG Gaussians from several starts, trained at once."
    )
    reference: ClassVar[str] = (
        "Wilson and Izmailov 2020, Bayesian deep learning and a probabilistic perspective of "
        "generalization."
    )
    tries: ClassVar[bool] = True
    fixed_length: ClassVar[bool] = True
    afterwards: ClassVar[str | None] = (
        "statistics of batch normalisation for every draw, where the network has any"
    )
    tolerance: ClassVar[float] = 0.2
    conformance_settings: ClassVar[dict[str, Any]] = {
        "epochs": 300,
        "batch_size": 16,
        "lr": 0.01,
        "start": 0.25,
        "num_members": 2,
        "optimizer": "sgd",
    }
    exceptions: ClassVar[dict[str, str]] = {
        "conjugate_covariance": "the covariance is that of the optimizer's path, which only by "
        "chance is that of the posterior"
    }

    num_members: int = setting(
        5, "Training paths, each giving one Gaussian of the mixture.", ge=1, short="members"
    )

    def for_trial(self) -> Self:
        """Two members tell how wide the prior of all should be; one is much surer of itself."""
        return replace(self, num_members=min(self.num_members, 2))

    def usual_steps(self, problem: Problem, batch_size: int | None) -> int:
        return min(problem.num_steps(batch_size, self.num_members), STEPS)

    def fit(self, model: Model, fit_job: FitJob) -> Fitted:
        """Descend, then gather along all paths at once."""
        path = gathered_moments(self, fit_job)
        last = train(
            start_members(model, fit_job, self.num_members, self.init, path),
            fit_job,
            members_optimizer(self.optimizer, self.momentum),
            step_maker(self.vectorise),
            decay=swag_schedule(self, self.lr_schedule),
            compile=self.compile,
        )
        return Fitted(
            swag_posterior(model, fit_job, path, self.num_members, self.num_draws), last.buffers
        )
