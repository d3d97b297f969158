"""Sparse variational dropout: a dropout rate for every weight, and weights whose rate goes to one
leave the network.

q(w) = N(mu, sigma^2) under the log-uniform prior p(w) ~ 1 / abs(w), whose KL depends on alpha =
sigma^2 / mu^2 alone and falls to zero as alpha grows: a weight that the data do not need is better
all noise. The KL is Molchanov et al.'s fit, within 0.01 nats of the integral; the prior is
improper, so bits of weights hold up to a constant and there is no evidence. Weights are random,
biases and scales are points. The KL sets in late and rises slowly (``kl_schedule="late"``): a
network that has not learned anything yet would be pruned whole.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from credo.core.settings import setting
from credo.core.sites import by_dtype
from credo.engine.elbo_fit import ElboSettings, elbo_fit
from credo.engine.fit_job import FitJob
from credo.engine.method import Method, methods
from credo.engine.model import Fitted, Model
from credo.engine.training_loop import DescentSettings
from credo.estimators import estimators, pathwise_estimators
from credo.methods.sparse.parts.log_uniform import log_uniform_over
from credo.methods.sparse.parts.settings import CONFORMANCE, LateKLSettings
from credo.posteriors import Params, Posterior, SparseVD


@methods.register("sparse_vd")
@dataclass(frozen=True)
class SparseVDMethod(Method, LateKLSettings, DescentSettings, ElboSettings):
    """A rate per weight, and pruning by it."""

    name: ClassVar[str] = "sparse_vd"
    summary: ClassVar[str] = (
        "Sparse variational dropout: a rate per weight; weights that are all noise are pruned."
    )
    reference: ClassVar[str] = (
        "Molchanov, Ashukha and Vetrov 2017, Variational dropout sparsifies deep neural networks."
    )
    target: ClassVar[str] = "sparse_vd"
    tolerance: ClassVar[float] = 0.1
    conformance_settings: ClassVar[dict[str, Any]] = CONFORMANCE

    init_std: float = setting(math.exp(-5.0), "Initial standard deviation of every weight.", gt=0.0)
    threshold: float = setting(
        3.0, "Value of log alpha from which a weight is pruned; 3 is a drop rate of 0.95."
    )
    estimator: str = setting("local", "How noise enters training.", choices=pathwise_estimators())

    def adapt(self, model: Model) -> Model:
        """Weights are random under the log-uniform prior; biases and scales, which are few, are
        points without a prior.
        """
        return log_uniform_over(
            model, [name for name, site in model.random.items() if len(site.shape) > 1], self.name
        )

    def fit(self, model: Model, fit_job: FitJob) -> Fitted:
        """Put a sparse Gaussian on every weight and maximise the ELBO."""
        posterior = self.posterior(model, model.start_values(self.init, fit_job.seed))
        return elbo_fit(model, fit_job, posterior, estimators[self.estimator], self, self)

    def posterior(self, model: Model, values: Params) -> Posterior:
        """Narrow sparse Gaussians around ``values``."""
        families = []
        for sites in by_dtype(model.random):
            own = {site.name: values[site.name] for site in sites}
            families.append(SparseVD.start(own, self.init_std, threshold=self.threshold))
        return model.with_points(families, values)
