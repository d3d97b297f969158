"""Maximum likelihood: argmax_w sum_n log p(y_n given x_n, w).

A delta posterior under a flat prior. It knows nothing of its own ignorance: epistemic uncertainty
is zero everywhere. It overfits where data are few; use it as the baseline that every Bayesian
answer is compared with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from credo.engine.descent import GradientMethod
from credo.engine.elbo import Elbo
from credo.engine.fit_job import FitJob, Fitted
from credo.engine.initial_posterior import point_posterior
from credo.engine.method import methods
from credo.engine.model import Model
from credo.estimators import estimators


@methods.register("mle")
@dataclass(frozen=True)
class MLE(GradientMethod):
    """Maximum likelihood by Adam."""

    name: ClassVar[str] = "mle"
    summary: ClassVar[str] = "Maximum likelihood: a point estimate without a prior."
    reference: ClassVar[str] = (
        "Fisher 1922, On the mathematical foundations of theoretical statistics."
    )
    target: ClassVar[str] = "least_squares"
    tolerance: ClassVar[float] = 0.01
    conformance_settings: ClassVar[dict[str, Any]] = {"epochs": 500, "batch_size": None, "lr": 0.1}
    exceptions: ClassVar[dict[str, str]] = {
        "conjugate_covariance": "a point estimate has no spread"
    }

    def adapt(self, model: Model) -> Model:
        """Without a prior."""
        return model.flat()

    def fit(self, model: Model, fit_job: FitJob) -> Fitted:
        """Descend on the negative log-likelihood."""
        posterior = point_posterior(model, self.start(model, fit_job))
        return self.descend(Elbo(model, posterior, estimators["weights"]), fit_job)
