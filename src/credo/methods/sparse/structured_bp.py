"""Structured Bayesian pruning: noise on whole units with a sparse prior, and units whose noise
exceeds their signal leave the network.

q: w = W s with one s = exp(t) per input unit of a layer (a channel of a convolution, a word of an
embedding), t ~ N(mu, sigma^2) truncated to [-20, 0]; the prior of t is uniform there. The KL is
closed and proper for s, and W is not held back; what is pruned makes layers narrower, so that the
network gets faster without sparse kernels. ``layers="all"`` prunes the inputs of the first layer
too. A data set that needs every unit keeps every unit, and with few data the KL, which counts units
and not weights, is too weak to prune many. The KL sets in late (``kl_schedule``), since a unit that
has learned nothing yet would be pruned.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from credo.posteriors import StructuredNoise
from credo.priors import Fixed, log_uniform


@methods.register("structured_bp")
@dataclass(frozen=True)
class StructuredBP(Method, DescentSettings, ElboSettings, NoiseSettings):
    """Truncated log-normal factors on units, and pruning by their signal-to-noise ratio."""

    name: ClassVar[str] = "structured_bp"
    summary: ClassVar[str] = (
        "Structured Bayesian pruning: log-normal noise per unit; units drowned by it are pruned."
    )
    reference: ClassVar[str] = (
        "Neklyudov, Molchanov, Ashukha and Vetrov 2017, Structured Bayesian pruning via "
        "log-normal multiplicative noise."
    )
    network_noise: ClassVar[str | None] = "dropout"
    target: ClassVar[str] = "structured_bp"
    tolerance: ClassVar[float] = 0.05
    conformance_settings: ClassVar[dict[str, Any]] = {
        "epochs": 500,
        "batch_size": None,
        "lr": 0.05,
        "train_samples": 4,
        "rate_lr": 1.0,
        "kl_schedule": "constant",
    }

    p: Any = setting(
        0.01,
        "Drop rate whose noise the fit starts from, or rates by name pattern; None: those of the "
        "network's own dropout modules.",
        kind=(float, int, Mapping),
        gt=0.0,
        le=0.999,
    )
    rate_lr: float = setting(
        3.0, "Learning rate of the noise, as a multiple of the weights'.", gt=0.0
    )
    threshold: float = setting(
        1.0, "Signal-to-noise ratio E[s] / sd[s] below which a unit is pruned.", gt=0.0
    )
    kl_schedule: str = setting(
        "late", "KL weight schedule.", choices=("constant", "linear", "cosine", "late")
    )
    kl_warmup: int = setting(
        20,
        "Epochs until the KL counts fully; 'late' leaves it out for the first quarter of them.",
        ge=0,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length_scale is not None:
            raise SettingError(
                f"structured_bp: length_scale={self.length_scale:g} does not apply, its prior is "
                "log-uniform; use 'mc_dropout'."
            )

    def adapt(self, model: Model) -> Model:
        """Log-uniform on everything with noise; what has none is a point without a prior."""
        return replace(model, prior=Fixed(log_uniform()))

    def fit(self, model: Model, fit_job: FitJob) -> Fitted:
        """Put little noise on every unit and maximise the ELBO."""
        places, rates = noise_places(model, fit_job.source.example(2), self, self.name)
        values = model.start_values(self.init, fit_job.seed)
        random = {n: values[n] for n in model.random}
        family = StructuredNoise.start(random, places, rates, self.threshold)
        posterior = model.with_points([family], values)
        estimator, optimizer = estimators[self.estimator], partial(adam, rate_lr=self.rate_lr)
        return elbo_fit(model, fit_job, posterior, estimator, self, self, optimizer=optimizer)
