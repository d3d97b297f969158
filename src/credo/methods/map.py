"""Maximum a posteriori: argmax_w sum_n log p(y_n given x_n, w) + log p(w).

A delta posterior under the model's prior: a normal prior is weight decay, a Laplace prior L1. The mode depends on the
parameterisation and may hold no mass; like maximum likelihood it reports no epistemic uncertainty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from credo.core.settings import setting
from credo.engine.build import initial_values, point_posterior
from credo.engine.descend import descend
from credo.engine.elbo import Elbo
from credo.engine.job import Fitted, Job
from credo.engine.method import Method, methods
from credo.engine.model import Model
from credo.engine.schedules import decays
from credo.estimators import estimators


@methods.register("map")
@dataclass(frozen=True)
class MAP(Method):
    """Maximum a posteriori by Adam."""

    name: ClassVar[str] = "map"
    summary: ClassVar[str] = "Maximum a posteriori: a point estimate with the prior as penalty."
    reference: ClassVar[str] = "MacKay 1992, A practical Bayesian framework for backpropagation networks."
    target: ClassVar[str] = "exact"
    tolerance: ClassVar[float] = 0.01
    small: ClassVar[dict[str, Any]] = {"epochs": 500, "batch_size": None, "lr": 0.1}
    exceptions: ClassVar[dict[str, str]] = {"conjugate_covariance": "a point estimate has no spread"}

    init: Any = setting(
        "pretrained",
        "Start: 'pretrained' (the network's values), 'random', or a state dict.",
        kind=(str, Mapping),
        choices=("pretrained", "random"),
    )
    lr_schedule: str = setting("cosine", "Course of the learning rate.", choices=("constant", "cosine"))
    compile: bool = setting(False, "Compile the step (one CUDA graph on a GPU).")

    def fit(self, model: Model, job: Job) -> Fitted:
        """Descend on the negative log joint."""
        posterior = point_posterior(model, initial_values(model, self.init, job.seed))
        return descend(Elbo(model, posterior, estimators["weights"]), job, decay=decays[self.lr_schedule], compile=self.compile)
