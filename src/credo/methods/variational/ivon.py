"""Natural-gradient variational inference: the improved variational online Newton method (IVON).

A mean-field Gaussian whose precision is a running estimate of the curvature plus the prior's. Its
step costs little more than Adam's with ``estimator="weights"``, and that of ``vi`` with "local",
whose estimates of the curvature have a small fraction of the noise. Needs a normal prior and a
learning rate above Adam's; a large ``hess_init`` starts with little noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from credo.core.errors import SettingError
from credo.core.settings import setting
from credo.engine.elbo_fit import ElboSettings, elbo_fit
from credo.engine.fit_job import FitJob, Problem
from credo.engine.method import Method, methods
from credo.engine.model import Fitted, Model
from credo.engine.training_loop import DescentSettings
from credo.estimators import estimators, pathwise_estimators
from credo.methods.variational.parts.ivon_optimizer import Newton, ivon
from credo.methods.variational.parts.settings import DensitySettings
from credo.methods.variational.parts.tempered import tempered
from credo.posteriors import Start

START_STD, LEAST_HESSIAN, BATCH = 0.012, 0.1, 128


@methods.register("ivon")
@dataclass(frozen=True)
class IVON(Method, DescentSettings, ElboSettings, DensitySettings):
    """Mean-field VI by natural gradients."""

    name: ClassVar[str] = "ivon"
    summary: ClassVar[str] = (
        "Natural-gradient variational inference with a running estimate of the curvature."
    )
    reference: ClassVar[str] = (
        "Shen et al. 2024, Variational learning is effective for large deep networks."
    )
    lr: ClassVar[float | None] = 0.2
    target: ClassVar[str] = "mean_field"
    tries: ClassVar[bool] = True
    trial_share: ClassVar[float] = 0.25
    tolerance: ClassVar[float] = 0.1
    conformance_settings: ClassVar[dict[str, Any]] = {
        "epochs": 1500,
        "batch_size": None,
        "lr": 0.1,
        "beta2": 0.99,
        "train_samples": 4,
    }

    estimator: str = setting("local", "How noise enters training.", choices=pathwise_estimators())
    beta1: float = setting(0.9, "Decay rate of the running mean of gradients.", ge=0.0, le=0.9999)
    beta2: float = setting(
        0.9999, "Decay rate of the running mean of curvatures.", gt=0.0, le=0.9999999
    )
    hess_init: float | None = setting(
        None,
        "Initial curvature of every weight, per example; None lets weights start with an sd of "
        "0.012, and gives at least 0.1.",
        gt=0.0,
        kind=(int, float),
    )
    point_lr: float | None = setting(
        None,
        "Learning rate of point estimates and of the likelihood's noise, which move by Adam, and "
        "the furthest that a mean moves in a step; None takes Adam's default for a network of this "
        "size.",
        gt=0.0,
        kind=(int, float),
    )

    def __post_init__(self) -> None:
        """The optimizer knows the prior by its precision, so there is no KL to sample."""
        super().__post_init__()
        if self.kl != "closed":
            raise SettingError(
                f"ivon: kl={self.kl!r} is not valid; its optimizer needs the closed form, or use "
                "method='vi'."
            )

    def by_problem(self, problem: Problem) -> dict[str, Any]:
        hess_init = max(LEAST_HESSIAN, 1.0 / (problem.num_data * START_STD**2))
        return {"hess_init": hess_init, "point_lr": problem.adam_lr}

    def alternatives(self, model: Model) -> Mapping[str, Sequence[Any]]:
        return tempered(self)

    def usual_batch_size(self, problem: Problem) -> int | None:
        """All data where a step on them is cheap: with a step of lr on B of N examples the last
        mean has a deviation of sqrt(lr N / (2 B)) in units of the posterior's.
        """
        return problem.chain_batch_size(BATCH)

    def fit(self, model: Model, fit_job: FitJob) -> Fitted:
        """Independent Gaussians, moved by Newton's steps; ``hess_init`` sets where their width
        starts.
        """
        if model.prior.parts():
            raise SettingError(
                f"ivon needs a fixed normal prior; {model.prior.describe()!r} is learned: use "
                "method='vi' for it."
            )
        values = model.start_values(self.init, fit_job.seed)
        posterior = model.posterior("mean_field", values, Start(self.init_std))
        assert self.hess_init is not None and self.point_lr is not None  # by_problem has set them
        size = fit_job.source.num_data / self.kl_weight
        newton = Newton(self.beta1, self.beta2, self.hess_init, size)
        compiled = self.compile is True
        optimizer = partial(ivon, newton=newton, point_lr=self.point_lr, compile=compiled)
        estimator = estimators[self.estimator]
        return elbo_fit(
            model, fit_job, posterior, estimator, self, self, kl="optimizer", optimizer=optimizer
        )
