"""SWAG: a Gaussian with the mean and covariance of the weights that SGD passes at a constant
learning rate.

Near a mode the path of SGD wanders with the noise of its batches, in about the directions in which
the loss is flat. Its mean is stochastic weight averaging, plain or exponential; half of its
variance is kept per weight and half in the last ``rank`` deviations. How far it wanders depends on
the learning rate and the batch size, not only on the posterior; with all data in one batch there is
no spread at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

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


@methods.register("swag")
@dataclass(frozen=True)
class SWAG(Method, SwagSettings, MemberSettings, DescentSettings):
    """One Gaussian along one path."""

    name: ClassVar[str] = "swag"
    summary: ClassVar[str] = "SWAG: a low-rank Gaussian fitted to the path of SGD."
    reference: ClassVar[str] = (
        "Maddox et al. 2019, A simple baseline for Bayesian uncertainty in deep learning."
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
        "optimizer": "sgd",
    }
    exceptions: ClassVar[dict[str, str]] = {
        "conjugate_covariance": "the covariance is that of the optimizer's path, which only by "
        "chance is that of the posterior"
    }

    init: Any = setting(
        "pretrained",
        "Start: 'pretrained' (the network's values), 'random', or a state dict.",
        kind=(str, Mapping),
        choices=("pretrained", "random"),
    )

    def usual_steps(self, problem: Problem, batch_size: int | None) -> int:
        return min(problem.num_steps(batch_size), STEPS)

    def fit(self, model: Model, fit_job: FitJob) -> Fitted:
        """Descend, then gather along one path."""
        path = gathered_moments(self, fit_job)
        last = train(
            start_members(model, fit_job, 1, self.init, path),
            fit_job,
            members_optimizer(self.optimizer, self.momentum),
            step_maker(self.vectorise),
            decay=swag_schedule(self, self.lr_schedule),
            compile=self.compile,
        )
        return Fitted(swag_posterior(model, fit_job, path, 1, self.num_draws), last.buffers)
