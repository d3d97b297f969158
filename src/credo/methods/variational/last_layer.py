"""A Gaussian over the last layer alone, the layers below as point estimates learned with it.

With a Gaussian likelihood and a normal prior the last layer is Bayesian linear regression on the
learned features: after the descent the posterior is put at that closed form, which is the maximum
of the ELBO over it. Cheap to predict with, since all draws share the features; knows no uncertainty
about the features themselves, so it can be sure of itself far from the data.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

from credo.core.errors import NetworkError, SettingError
from credo.core.settings import setting
from credo.engine.elbo_fit import Variational
from credo.engine.fit_job import FitJob, Fitted
from credo.engine.initial_posterior import start_posterior
from credo.engine.linear_gaussian import conjugate, regression
from credo.engine.method import methods
from credo.engine.model import Model
from credo.estimators import Estimator, estimators
from credo.posteriors import Full, Posterior


@methods.register("last_layer")
@dataclass(frozen=True)
class LastLayer(Variational):
    """Full covariance on the last layer."""

    name: ClassVar[str] = "last_layer"
    summary: ClassVar[str] = (
        "Full-covariance posterior of the last layer on features learned with it."
    )
    reference: ClassVar[str] = (
        "Snoek et al. 2015, Scalable Bayesian optimization using deep neural networks."
    )
    lr: ClassVar[float] = 1e-2
    target: ClassVar[str] = "exact"
    tolerance: ClassVar[float] = 0.05
    conformance_settings: ClassVar[dict[str, Any]] = {"epochs": 300, "batch_size": None, "lr": 0.02}

    posterior: str = setting(
        "full",
        "Family of q over the last layer.",
        choices=("full", "kron", "low_rank", "mean_field"),
    )
    estimator: str = setting(
        "weights",
        "How noise enters training.",
        choices=("weights", "local", "flipout", "per_example"),
    )
    rank: int = setting(4, "Factors of the low-rank family.", ge=1)
    layers: Any = setting(
        "last", "Which layers are random: 'last', or name patterns.", kind=(str, tuple, list)
    )

    def adapt(self, model: Model) -> Model:
        """Only the last layer is random."""
        return model.narrow(self.layers)

    def make_posterior(self, model: Model, fit_job: FitJob) -> Posterior:
        """The chosen family over the last layer, points below."""
        return start_posterior(
            model,
            self.posterior,
            self.start(model, fit_job),
            self.init_std,
            self.rank,
            "log",
            fit_job.seed,
        )

    def make_estimator(self) -> Estimator:
        """The chosen estimator."""
        return estimators[self.estimator]

    def finish(self, model: Model, fit_job: FitJob, fitted: Fitted) -> Fitted:
        """The closed form on the learned features, where there is one."""
        for family in fitted.posterior.members:
            if isinstance(family, Full) and self.beta == 1.0 and conjugate(model):
                try:
                    solved = regression(
                        model, fit_job, fitted.posterior.mean(), fitted.buffers, family.layout
                    )
                except (
                    NetworkError
                ):  # ``layers`` in which the network is not linear: what the descent found stays
                    continue
                # one pass over the source does not show all data: say so, and keep the fit
                except SettingError as error:
                    warnings.warn(
                        f"last_layer keeps the posterior of the descent: {error}", stacklevel=2
                    )
                    continue
                family.set(solved.mean.to(family.flat_mean), solved.tril.to(family.flat_mean))
        return fitted
