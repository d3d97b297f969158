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
from credo.engine.elbo_fit import Variational
from credo.engine.fit_job import FitJob
from credo.engine.initial_posterior import start_posterior
from credo.engine.method import methods
from credo.engine.model import Model
from credo.estimators import Estimator, estimators
from credo.posteriors import MeanField, Posterior
from credo.priors import Optimal


@methods.register("weight_noise")
@dataclass(frozen=True)
class WeightNoise(Variational):
    """Noise on the weights as regulariser."""

    name: ClassVar[str] = "weight_noise"
    summary: ClassVar[str] = (
        "Gaussian noise on the weights: of fixed size, or adaptive under the optimal prior."
    )
    reference: ClassVar[str] = "Graves 2011, Practical variational inference for neural networks."
    lr: ClassVar[float] = 1e-2
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
        "linear", "Course of the KL's weight.", choices=("constant", "linear", "cosine", "blundell")
    )
    kl_warmup: int = setting(50, "Epochs over which 'linear' and 'cosine' rise to beta.", ge=0)
    adaptive: bool = setting(False, "Learn the noise of every weight under the optimal prior.")
    estimator: str = setting(
        "weights",
        "How noise enters training.",
        choices=("weights", "local", "flipout", "per_example"),
    )

    def adapt(self, model: Model) -> Model:
        """Flat prior for fixed noise; the optimal normal per layer for adaptive noise."""
        return replace(model, prior=Optimal(per="layer")) if self.adaptive else model.flat()

    def make_posterior(self, model: Model, fit_job: FitJob) -> Posterior:
        """Independent Gaussians, their spread held fixed unless adaptive."""
        posterior = start_posterior(
            model, "mean_field", self.start(model, fit_job), self.init_std, 1, "log", fit_job.seed
        )
        for family in posterior.members:
            if isinstance(family, MeanField) and not self.adaptive:
                family.raw_std.requires_grad_(False)
        return posterior

    def make_estimator(self) -> Estimator:
        """The chosen estimator."""
        return estimators[self.estimator]
