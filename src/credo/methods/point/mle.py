"""Maximum likelihood: argmax_w sum_n log p(y_n given x_n, w).

A delta posterior under a flat prior. It knows nothing of its own ignorance: epistemic uncertainty
is zero everywhere. It overfits where data are few; use it as the baseline that every Bayesian
answer is compared with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from credo.engine.elbo_fit import point_fit
from credo.engine.fit_job import FitJob
from credo.engine.method import Method, methods
from credo.engine.model import Fitted, Model
from credo.engine.training_loop import DescentSettings


@methods.register("mle")
@dataclass(frozen=True)
class MLE(Method, DescentSettings):
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
        """Maximise the log-likelihood."""
        start = model.start_values(self.init, fit_job.seed)
        return point_fit(model, fit_job, model.point_posterior(start), descent=self)
