"""Natural-gradient variational inference: the improved variational online Newton method (IVON).

A mean-field Gaussian whose precision is a running estimate of the curvature plus the prior's, so
that a step costs little more than Adam's. Needs a normal prior and a learning rate far above Adam's
(0.1 and more); a large ``hess_init`` starts with little noise. The curvature follows only as fast
as ``beta2`` allows: in short runs the spread is still that of ``hess_init``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from credo.core.errors import SettingError
from credo.core.settings import setting
from credo.engine.elbo_fit import ElboSettings, elbo_fit
from credo.engine.fit_job import FitJob
from credo.engine.method import Method, methods
from credo.engine.model import Fitted, Model
from credo.engine.training_loop import DescentSettings
from credo.estimators import estimators, pathwise_estimators
from credo.methods.variational.parts.ivon_optimizer import Newton, ivon
from credo.methods.variational.parts.settings import DensitySettings
from credo.posteriors import Start


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
    lr: ClassVar[float] = 0.1
    target: ClassVar[str] = "mean_field"
    tolerance: ClassVar[float] = 0.1
    conformance_settings: ClassVar[dict[str, Any]] = {
        "epochs": 1500,
        "batch_size": None,
        "lr": 0.1,
        "beta2": 0.99,
        "train_samples": 4,
    }

    estimator: str = setting("weights", "How noise enters training.", choices=pathwise_estimators())
    beta1: float = setting(0.9, "Decay rate of the running mean of gradients.", ge=0.0, le=0.9999)
    beta2: float = setting(
        0.9999, "Decay rate of the running mean of curvatures.", gt=0.0, le=0.9999999
    )
    hess_init: float = setting(0.1, "Initial curvature of every weight.", gt=0.0)
    point_lr: float = setting(
        1e-3,
        "Learning rate of point estimates and of the likelihood's noise, which move by Adam.",
        gt=0.0,
    )

    def __post_init__(self) -> None:
        """The optimizer knows the prior by its precision, so there is no KL to sample."""
        super().__post_init__()
        if self.kl != "closed":
            raise SettingError(
                f"ivon: kl={self.kl!r} is not valid; its optimizer needs the closed form, or use "
                "method='vi'."
            )

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
        newton = Newton(self.beta1, self.beta2, self.hess_init, fit_job.source.num_data / self.beta)
        compiled = self.compile is True
        optimizer = partial(ivon, newton=newton, point_lr=self.point_lr, compile=compiled)
        estimator = estimators[self.estimator]
        return elbo_fit(
            model, fit_job, posterior, estimator, self, self, kl="optimizer", optimizer=optimizer
        )
