"""Variational inference without sampling: means and (co)variances are carried through the network
in closed form.

Each linear map meets the posterior by its exact first two moments, each nonlinearity those of a
Gaussian, and the likelihood takes the expectation of its log density. Gradients have no noise; the
objective is as good as the Gaussian approximation of the activations, and no longer a strict bound.
Only networks of operations with rules: the first without one is named.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from credo.core.settings import setting
from credo.engine.elbo_fit import Variational
from credo.engine.fit_job import FitJob
from credo.engine.initial_posterior import start_posterior
from credo.engine.method import methods
from credo.engine.model import Model
from credo.estimators import Estimator
from credo.estimators.deterministic import Deterministic
from credo.posteriors import Posterior


@methods.register("moments")
@dataclass(frozen=True)
class MomentPropagation(Variational):
    """Deterministic variational inference."""

    name: ClassVar[str] = "moments"
    summary: ClassVar[str] = "Deterministic variational inference: moments instead of samples."
    reference: ClassVar[str] = (
        "Hinton and van Camp 1993; Wu et al. 2019, Deterministic variational inference for robust "
        "Bayesian NNs."
    )
    lr: ClassVar[float] = 1e-2
    target: ClassVar[str] = "mean_field"
    tolerance: ClassVar[float] = 0.02
    conformance_settings: ClassVar[dict[str, Any]] = {"epochs": 400, "batch_size": None, "lr": 0.1}
    exceptions: ClassVar[dict[str, str]] = {
        "networks": "recurrent and attention layers have no rules for moments; MLP and CNN are "
        "tested apart"
    }

    posterior: str = setting(
        "mean_field", "Family of q.", choices=("mean_field", "low_rank", "kron", "full")
    )
    covariance: str = setting(
        "diagonal", "What is carried between units.", choices=("diagonal", "full")
    )
    scale: str = setting(
        "log", "Parameterisation of the standard deviation.", choices=("log", "softplus")
    )
    rank: int = setting(4, "Factors of the low-rank family.", ge=1)

    def make_posterior(self, model: Model, fit_job: FitJob) -> Posterior:
        """The chosen family at the starting values."""
        return start_posterior(
            model,
            self.posterior,
            self.start(model, fit_job),
            self.init_std,
            self.rank,
            self.scale,
            fit_job.seed,
        )

    def make_estimator(self) -> Estimator:
        """Moments with or without covariances."""
        return Deterministic(self.covariance)
