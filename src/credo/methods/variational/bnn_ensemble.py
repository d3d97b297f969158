"""A mixture of mean-field Gaussians: several variational posteriors, started apart, averaged with
equal weights.

q(w) = 1/K sum_k q_k(w). The mean of the components' ELBOs is a lower bound of the evidence; it
ignores that the mixture's entropy is larger by up to log K, so each component is trained as if
alone, all in one loop. Components that start alike end alike: ``init`` is random by default. Noise
of the likelihood and BatchNorm statistics are shared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from credo.core.seeds import mix
from credo.core.settings import setting
from credo.engine.elbo_fit import ElboSettings, elbo_fit
from credo.engine.fit_job import FitJob
from credo.engine.method import Method, methods
from credo.engine.model import Fitted, Model
from credo.engine.training_loop import DescentSettings
from credo.estimators import estimators, pathwise_estimators
from credo.methods.variational.parts.settings import DensitySettings
from credo.posteriors import Gaussian, Mixture, Posterior, Start, startable


@methods.register("bnn_ensemble")
@dataclass(frozen=True)
class BNNEnsemble(Method, DescentSettings, ElboSettings, DensitySettings):
    """Several variational posteriors at once."""

    name: ClassVar[str] = "bnn_ensemble"
    summary: ClassVar[str] = (
        "Mixture of variational posteriors: an ensemble whose members have spread."
    )
    reference: ClassVar[str] = (
        "Wilson and Izmailov 2020, Bayesian deep learning and a probabilistic perspective of "
        "generalization."
    )
    lr: ClassVar[float | None] = 1e-2
    target: ClassVar[str] = "mean_field"
    tolerance: ClassVar[float] = 0.1
    conformance_settings: ClassVar[dict[str, Any]] = {
        "epochs": 1200,
        "batch_size": None,
        "lr": 0.05,
        "num_members": 2,
    }

    init: Any = setting(
        "random",
        "Start: 'random' (each member its own), 'pretrained' (all at the network's values), or a "
        "state dict.",
        kind=(str, Mapping),
        choices=("pretrained", "random"),
    )
    num_members: int = setting(5, "Components of the mixture.", ge=1, short="members")
    posterior: str = setting(
        "mean_field", "Posterior family of each component.", choices=startable(Gaussian)
    )
    estimator: str = setting("local", "How noise enters training.", choices=pathwise_estimators())
    scale: str = setting(
        "log", "Parameterisation of the standard deviation.", choices=("log", "softplus")
    )
    rank: int = setting(4, "Factors of the low-rank family.", ge=1)

    def fit(self, model: Model, fit_job: FitJob) -> Fitted:
        """One posterior per member, each from its own seed; maximise the mean of their ELBOs."""
        parts = []
        for k in range(self.num_members):
            seed = mix(fit_job.seed, "member", k)
            start = Start(self.init_std, self.scale, self.rank, seed=seed)
            values = model.start_values(self.init, seed)
            parts.append(model.posterior(self.posterior, values, start))
        mixture = Posterior([Mixture.of(parts)])
        estimator = estimators[self.estimator]
        return elbo_fit(model, fit_job, mixture, estimator, self, self, kl=self.kl)
