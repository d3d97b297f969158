"""Gaussian dropout: every input unit of a layer is multiplied by N(1, alpha) with alpha = p / (1 -
p).

The first two moments are those of dropout at rate p, and so is the penalty under a normal prior,
l^2 (1 + alpha) / (2 N) norm(W)^2; what is beyond (a unit is never switched off) differs. Smooth
noise has smooth gradients; its size is chosen, not inferred.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from credo.engine.elbo_fit import ElboSettings, elbo_fit
from credo.engine.fit_job import FitJob
from credo.engine.method import Method, methods
from credo.engine.model import Fitted, Model
from credo.engine.noise_places import NoiseSettings, noise_places, open_rates, with_length_scale
from credo.engine.training_loop import DescentSettings
from credo.estimators import estimators
from credo.posteriors import GaussianDropout


@methods.register("gaussian_dropout")
@dataclass(frozen=True)
class GaussianDropoutMethod(Method, DescentSettings, ElboSettings, NoiseSettings):
    """Gaussian factors of fixed size."""

    name: ClassVar[str] = "gaussian_dropout"
    summary: ClassVar[str] = "Gaussian dropout: units multiplied by N(1, p / (1 - p))."
    reference: ClassVar[str] = (
        "Srivastava et al. 2014, Dropout; Wang and Manning 2013, Fast dropout training."
    )
    network_noise: ClassVar[str | None] = "dropout"
    tries: ClassVar[bool] = True
    target: ClassVar[str] = "gaussian_dropout"
    tolerance: ClassVar[float] = 0.05
    conformance_settings: ClassVar[dict[str, Any]] = {
        "epochs": 600,
        "batch_size": None,
        "lr": 0.02,
        "train_samples": 8,
    }

    def alternatives(self, model: Model) -> Mapping[str, Sequence[Any]]:
        return open_rates(self, model)

    def adapt(self, model: Model) -> Model:
        """Under the prior of the length scale, if one is given."""
        return with_length_scale(model, self.length_scale)

    def fit(self, model: Model, fit_job: FitJob) -> Fitted:
        """Put factors of fixed variance on units and maximise the ELBO."""
        places, rates = noise_places(model, fit_job.source.example(2), self, self.name)
        values = model.start_values(self.init, fit_job.seed)
        random = {n: values[n] for n in model.random}
        family = GaussianDropout.start(
            random, places, rates, noise="input", per="layer", learn=False
        )
        posterior = model.with_points([family], values)
        return elbo_fit(model, fit_job, posterior, estimators[self.estimator], self, self)
