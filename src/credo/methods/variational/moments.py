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
from credo.engine.elbo_fit import ElboSettings, elbo_fit
from credo.engine.fit_job import FitJob
from credo.engine.method import Method, methods
from credo.engine.model import Fitted, Model
from credo.engine.training_loop import DescentSettings
from credo.estimators.deterministic import Deterministic
from credo.methods.variational.parts.settings import DensitySettings
from credo.posteriors import Gaussian, Start, startable


@methods.register("moments")
@dataclass(frozen=True)
class MomentPropagation(Method, DescentSettings, ElboSettings, DensitySettings):
    """Deterministic variational inference."""

    name: ClassVar[str] = "moments"
    summary: ClassVar[str] = "Deterministic variational inference: moments instead of samples."
    reference: ClassVar[str] = (
        "Hinton and van Camp 1993; Wu et al. 2019, Deterministic variational inference for robust "
        "Bayesian NNs."
    )
    lr: ClassVar[float | None] = 1e-2
    target: ClassVar[str] = "mean_field"
    tolerance: ClassVar[float] = 0.02
    conformance_settings: ClassVar[dict[str, Any]] = {"epochs": 400, "batch_size": None, "lr": 0.1}
    exceptions: ClassVar[dict[str, str]] = {
        "networks": "recurrent and attention layers have no rules for moments; MLP and CNN are "
        "tested apart"
    }

    posterior: str = setting("mean_field", "Posterior family.", choices=startable(Gaussian))
    covariance: str = setting(
        "diagonal",
        "Covariance between units that is propagated: none ('diagonal') or all of it ('full').",
        choices=("diagonal", "full"),
    )
    scale: str = setting(
        "log", "Parameterisation of the standard deviation.", choices=("log", "softplus")
    )
    rank: int = setting(4, "Factors of the low-rank family.", ge=1)

    def fit(self, model: Model, fit_job: FitJob) -> Fitted:
        """As ``vi``, with moments in place of draws."""
        values = model.start_values(self.init, fit_job.seed)
        start = Start(self.init_std, self.scale, self.rank, seed=fit_job.seed)
        posterior = model.posterior(self.posterior, values, start)
        estimator = Deterministic(self.covariance)
        return elbo_fit(model, fit_job, posterior, estimator, self, self, kl=self.kl)
