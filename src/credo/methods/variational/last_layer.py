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
from credo.engine.elbo_fit import ElboSettings, elbo_fit
from credo.engine.fit_job import FitJob, Problem
from credo.engine.linear_gaussian import conjugate, regression
from credo.engine.method import Method, methods
from credo.engine.model import Fitted, Model
from credo.engine.training_loop import DescentSettings
from credo.estimators import estimators, pathwise_estimators
from credo.methods.variational.parts.settings import DensitySettings
from credo.posteriors import Full, Gaussian, Start, startable

FULL = 300  #: weights of the last layer up to which its whole covariance is kept


@methods.register("last_layer")
@dataclass(frozen=True)
class LastLayer(Method, DescentSettings, ElboSettings, DensitySettings):
    """Full covariance on the last layer."""

    name: ClassVar[str] = "last_layer"
    summary: ClassVar[str] = (
        "Full-covariance posterior of the last layer on features learned with it."
    )
    reference: ClassVar[str] = (
        "Snoek et al. 2015, Scalable Bayesian optimization using deep neural networks."
    )
    lr: ClassVar[float | None] = 1e-2
    tries: ClassVar[bool] = True
    points_have_prior: ClassVar[bool] = True
    target: ClassVar[str] = "exact"
    tolerance: ClassVar[float] = 0.05
    conformance_settings: ClassVar[dict[str, Any]] = {"epochs": 300, "batch_size": None, "lr": 0.02}

    posterior: str | None = setting(
        None,
        "Posterior family of the last layer; None takes 'full' of up to 300 weights, and 'kron' of "
        "more.",
        kind=str,
        choices=startable(Gaussian),
    )
    estimator: str = setting("weights", "How noise enters training.", choices=pathwise_estimators())
    rank: int = setting(4, "Factors of the low-rank family.", ge=1)
    layers: Any = setting(
        "last", "Which layers are random: 'last', or name patterns.", kind=(str, tuple, list)
    )

    def by_problem(self, problem: Problem) -> dict[str, Any]:
        """All covariances cost the square of the number of weights in every step."""
        return {"posterior": "full" if problem.num_weights <= FULL else "kron"}

    def adapt(self, model: Model) -> Model:
        """Only the last layer is random."""
        return model.narrow(self.layers)

    def fit(self, model: Model, fit_job: FitJob) -> Fitted:
        """Learn features with q over the last layer, then put q at its closed form on them."""
        start = Start(self.init_std, rank=self.rank, seed=fit_job.seed)
        values = model.start_values(self.init, fit_job.seed)
        assert self.posterior is not None  # by_problem has set it
        posterior = model.posterior(self.posterior, values, start)
        estimator = estimators[self.estimator]
        fitted = elbo_fit(model, fit_job, posterior, estimator, self, self, kl=self.kl)
        self._solve(model, fit_job, fitted)
        return fitted

    def _solve(self, model: Model, fit_job: FitJob, fitted: Fitted) -> None:
        """The closed form on the learned features, where there is one."""
        for family in fitted.posterior.factors:
            if isinstance(family, Full) and self.kl_weight == 1.0 and conjugate(model):
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
