"""Weight noise: train with Gaussian noise on every weight, of fixed or of learned size.

Fixed: q(w) = N(mean, std^2) with the same std throughout and a flat prior, so that only the means
move. Adaptive: every weight learns its own std, and the prior is the normal distribution that fits
the posterior best (Graves's closed form), one per layer; the KL's weight rises over the first
epochs, because with its full weight from the start prior and posterior shrink onto each other
before the data are learned. Fixed noise has no evidence: its prior is improper.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from credo.core.settings import setting
from credo.engine.elbo_fit import ElboSettings, elbo_fit
from credo.engine.fit_job import FitJob
from credo.engine.method import Method, methods
from credo.engine.model import Fitted, Model
from credo.engine.training_loop import DescentSettings
from credo.estimators import estimators, pathwise_estimators
from credo.methods.variational.parts.settings import DensitySettings
from credo.posteriors import Start
from credo.priors import Optimal


@methods.register("weight_noise")
@dataclass(frozen=True)
class WeightNoise(Method, DescentSettings, ElboSettings, DensitySettings):
    """Noise on the weights as regulariser."""

    name: ClassVar[str] = "weight_noise"
    summary: ClassVar[str] = (
        "Gaussian noise on the weights: of fixed size, or adaptive under the optimal prior."
    )
    reference: ClassVar[str] = "Graves 2011, Practical variational inference for neural networks."
    lr: ClassVar[float | None] = 1e-2
    target: ClassVar[str] = "least_squares"
    tolerance: ClassVar[float] = 0.1
    conformance_settings: ClassVar[dict[str, Any]] = {"epochs": 600, "batch_size": None, "lr": 0.02}
    exceptions: ClassVar[dict[str, str]] = {
        "conjugate_covariance": "the size of the noise is chosen, not inferred"
    }

    init_std: float = setting(
        0.05, "Standard deviation of the noise; where it starts, if adaptive.", gt=0.0
    )
    kl_schedule: str = setting(
        "linear", "KL weight schedule.", choices=("constant", "linear", "cosine", "blundell")
    )
    kl_warmup: int = setting(
        50, "Epochs over which the KL weight rises to beta, for 'linear' and 'cosine'.", ge=0
    )
    adaptive: bool = setting(False, "Learn the noise of every weight under the optimal prior.")
    estimator: str = setting("weights", "How noise enters training.", choices=pathwise_estimators())

    def adapt(self, model: Model) -> Model:
        """Flat prior for fixed noise; the optimal normal per layer for adaptive noise."""
        return replace(model, prior=Optimal(per="layer")) if self.adaptive else model.flat()

    def fit(self, model: Model, fit_job: FitJob) -> Fitted:
        """Independent Gaussians whose width stays as it is, unless it is adaptive."""
        values = model.start_values(self.init, fit_job.seed)
        posterior = model.posterior("mean_field", values, Start(self.init_std))
        if not self.adaptive:
            for family in posterior.factors:
                family.hold_width()
        estimator = estimators[self.estimator]
        return elbo_fit(model, fit_job, posterior, estimator, self, self, kl=self.kl)
