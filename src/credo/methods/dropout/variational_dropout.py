"""Variational dropout: Gaussian dropout whose alpha is learned, under the log-uniform prior p(w) ~
1 / |w|.

q: w = W s, s ~ N(1, alpha), alpha < 1. The KL depends on alpha alone, so W itself is not held back;
its prior is improper and evidence undefined. ``noise="input"`` gives all weights of a unit one
factor and counts one KL per unit, ``"weight"`` gives every weight its own and counts one per
weight, which with N examples and many more weights pushes alpha to its bound.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

from credo.core.errors import SettingError
from credo.core.settings import setting
from credo.engine.elbo_fit import ElboSettings, elbo_fit
from credo.engine.fit_job import FitJob
from credo.engine.method import Method, methods
from credo.engine.model import Fitted, Model
from credo.engine.noise_places import NoiseSettings, noise_places
from credo.engine.step import adam
from credo.engine.training_loop import DescentSettings
from credo.estimators import estimators
from credo.posteriors import GaussianDropout, Places
from credo.priors import Fixed, log_uniform


@methods.register("variational_dropout")
@dataclass(frozen=True)
class VariationalDropout(Method, DescentSettings, ElboSettings, NoiseSettings):
    """Gaussian factors of learned size."""

    name: ClassVar[str] = "variational_dropout"
    summary: ClassVar[str] = (
        "Variational dropout: Gaussian noise of learned size under a log-uniform prior."
    )
    reference: ClassVar[str] = (
        "Kingma, Salimans and Welling 2015, Variational dropout; Molchanov et al. 2017 for the KL."
    )
    network_noise: ClassVar[str | None] = "dropout"
    target: ClassVar[str] = "variational_dropout"
    tolerance: ClassVar[float] = 0.05
    conformance_settings: ClassVar[dict[str, Any]] = {
        "epochs": 800,
        "batch_size": None,
        "lr": 0.05,
        "train_samples": 8,
        "rate_lr": 1.0,
    }

    rate_lr: float = setting(
        3.0, "Learning rate of the rates, as a multiple of the weights'.", gt=0.0
    )
    per: str = setting(
        "unit",
        "What has an alpha of its own: a layer, each unit, or each weight.",
        choices=("weight", "unit", "layer"),
    )
    noise: str = setting(
        "input", "Noise on inputs (one factor per unit) or on weights.", choices=("input", "weight")
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.per == "weight" and self.noise == "input":
            raise SettingError(
                "variational_dropout: per='weight' needs noise='weight'; noise on inputs is one "
                "factor per unit."
            )
        if self.length_scale is not None:
            raise SettingError(
                "variational_dropout: length_scale does not apply, its prior is log-uniform; use "
                "'gaussian_dropout'."
            )
        if isinstance(self.p, (int, float)) and self.p >= 0.5:
            raise SettingError(
                f"variational_dropout: p={self.p:g} starts alpha = p / (1 - p) at 1 or above; "
                "expected p < 0.5."
            )

    def adapt(self, model: Model) -> Model:
        """Log-uniform on everything with noise; what has none is a point without a prior."""
        return replace(model, prior=Fixed(log_uniform()))

    def fit(self, model: Model, fit_job: FitJob) -> Fitted:
        """Put factors of learned variance on units or weights and maximise the ELBO."""
        places, rates = noise_places(model, fit_job.source.example(2), self, self.name)
        self._check(places, rates)
        values = model.start_values(self.init, fit_job.seed)
        random = {n: values[n] for n in model.random}
        family = GaussianDropout.start(
            random, places, rates, noise=self.noise, per=self.per, learn=True
        )
        posterior = model.with_points([family], values)
        estimator, optimizer = estimators[self.estimator], partial(adam, rate_lr=self.rate_lr)
        return elbo_fit(model, fit_job, posterior, estimator, self, self, optimizer=optimizer)

    def _check(self, places: Places, rates: dict[str, float]) -> None:
        """Refuse noise that would start at alpha of 1 and above, or where it cannot be."""
        high = {name: rate for name, rate in rates.items() if rate >= 0.5}
        if high:
            name, rate = next(iter(high.items()))
            raise SettingError(
                f"variational_dropout: {name} has the rate {rate:g}, which starts alpha = p / (1 "
                "- p) at 1 or above; "
                "expected p < 0.5, e.g. p=0.3."
            )
        if places.masks and self.noise == "weight":
            raise SettingError(
                "variational_dropout: noise='weight' on a network with dropout modules of its "
                "own; use noise='input', or a network "
                "without them."
            )
