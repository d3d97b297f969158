"""Concrete dropout: MC dropout whose rates are learned, one per layer or per unit.

KL = sum l^2 / (2 (1 - p)) W^2 - K H(p): the entropy of the masks pulls p to one half, the weights
and the data pull it down, more so with more data. ``gradient`` says how a rate is learned through
Bernoulli masks: "concrete" relaxes them (low variance, small bias), "reinforce" weights the score
by the loss (no bias, high variance), "arm" runs two opposite masks and needs no baseline (no bias,
lower variance, two passes). Rates are in ``history`` as ``rate/<place>``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from credo.core.settings import setting
from credo.engine.elbo_fit import ElboSettings, elbo_fit
from credo.engine.fit_job import FitJob
from credo.engine.method import Method, methods
from credo.engine.model import Fitted, Model
from credo.engine.noise_places import NoiseSettings, noise_places, with_length_scale
from credo.engine.step import adam
from credo.engine.training_loop import DescentSettings
from credo.estimators import estimators
from credo.posteriors import ConcreteDropout


@methods.register("concrete_dropout")
@dataclass(frozen=True)
class ConcreteDropoutMethod(Method, DescentSettings, ElboSettings, NoiseSettings):
    """Bernoulli masks at learned rates."""

    name: ClassVar[str] = "concrete_dropout"
    summary: ClassVar[str] = (
        "Concrete dropout: learned drop rates, by relaxation, REINFORCE or ARM."
    )
    reference: ClassVar[str] = (
        "Gal, Hron and Kendall 2017, Concrete dropout; Yin and Zhou 2019, ARM."
    )
    network_noise: ClassVar[str | None] = "dropout"
    tries: ClassVar[bool] = True
    target: ClassVar[str] = "concrete_dropout"
    tolerance: ClassVar[float] = 0.1
    problem: ClassVar[dict[str, Any]] = {
        "num_data": 12,
        "std": 2.0,
    }  # with more certain data the best noise is next to none
    conformance_settings: ClassVar[dict[str, Any]] = {
        "epochs": 800,
        "batch_size": None,
        "lr": 0.03,
        "train_samples": 8,
        "rate_lr": 1.0,
    }

    rate_lr: float = setting(
        3.0, "Learning rate of the rates, as a multiple of the weights'.", gt=0.0
    )
    per: str = setting(
        "layer", "What has a rate of its own: a layer, or each unit.", choices=("layer", "unit")
    )
    gradient: str = setting(
        "concrete", "Gradient estimator of the rates.", choices=("concrete", "reinforce", "arm")
    )
    temperature: float = setting(
        0.1, "Temperature of the relaxation; a colder one has less bias and more variance.", gt=0.0
    )

    def alternatives(self, model: Model) -> Mapping[str, Sequence[Any]]:
        """Rates are learned, so only the prior is left to try."""
        return {} if self.length_scale is None else {"prior": ()}

    def adapt(self, model: Model) -> Model:
        """Under the prior of the length scale, if one is given."""
        return with_length_scale(model, self.length_scale)

    def fit(self, model: Model, fit_job: FitJob) -> Fitted:
        """Put masks on units and maximise the ELBO over weights and rates."""
        places, rates = noise_places(model, fit_job.source.example(2), self, self.name)
        values = model.start_values(self.init, fit_job.seed)
        random = {n: values[n] for n in model.random}
        family = ConcreteDropout.start(random, places, rates, self.per, self.temperature)
        posterior = model.with_points([family], values)
        relaxed = self.gradient == "concrete"
        estimator = estimators[self.estimator if relaxed else self.gradient]
        estimator = estimator.entering(self.estimator)
        optimizer = partial(adam, rate_lr=self.rate_lr)
        return elbo_fit(model, fit_job, posterior, estimator, self, self, optimizer=optimizer)
