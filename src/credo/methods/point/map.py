"""Maximum a posteriori: argmax_w sum_n log p(y_n given x_n, w) + log p(w).

A delta posterior under the model's prior: a normal prior is weight decay, a Laplace prior L1. The
mode depends on the parameterisation and may hold no mass; like maximum likelihood it reports no
epistemic uncertainty.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from credo.engine.elbo_fit import point_fit
from credo.engine.fit_job import FitJob
from credo.engine.method import Method, methods
from credo.engine.model import Fitted, Model
from credo.engine.training_loop import DescentSettings


@methods.register("map")
@dataclass(frozen=True)
class MAP(Method, DescentSettings):
    """Maximum a posteriori by Adam."""

    name: ClassVar[str] = "map"
    summary: ClassVar[str] = "Maximum a posteriori: a point estimate with the prior as penalty."
    reference: ClassVar[str] = (
        "MacKay 1992, A practical Bayesian framework for backpropagation networks."
    )
    tries: ClassVar[bool] = True
    target: ClassVar[str] = "exact"
    tolerance: ClassVar[float] = 0.01
    conformance_settings: ClassVar[dict[str, Any]] = {"epochs": 500, "batch_size": None, "lr": 0.1}
    exceptions: ClassVar[dict[str, str]] = {
        "conjugate_covariance": "a point estimate has no spread"
    }

    def fit(self, model: Model, fit_job: FitJob) -> Fitted:
        """Maximise the log joint density."""
        start = model.start_values(self.init, fit_job.seed)
        return point_fit(model, fit_job, model.point_posterior(start), descent=self)
