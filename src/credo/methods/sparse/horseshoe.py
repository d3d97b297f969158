"""Horseshoe over units: how wide every layer has to be is inferred with its weights.

All incoming weights of an output unit, its bias included, share a scale: w_k = z_k v_k, z_k =
z_local z_global with z_local ~ C+(0, 1) per unit and z_global ~ C+(0, tau0) per layer, v ~ N(mu,
sigma^2) under N(0, 1), log-normal q for the parts of z. A unit that noise drowns, log(sum V[w] /
sum E[w]^2) >= threshold, is switched off; the widths that are left are in the history as
``kept/<weight>``. The output layer has scales too, one per output. Normalisation is a point, and
weights of unknown layers are. The non-centred form, the default, is what makes q's weights and
scales independent enough to learn.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from credo.core.settings import setting
from credo.engine.elbo_fit import ElboSettings, elbo_fit
from credo.engine.fit_job import FitJob
from credo.engine.method import Method, methods
from credo.engine.model import Fitted, Model
from credo.engine.step import adam
from credo.engine.training_loop import DescentSettings
from credo.estimators import estimators
from credo.methods.sparse.parts.group_fit import (
    GroupSettings,
    HorseshoeSettings,
    group_posterior,
    under_scales,
    unit_places,
)
from credo.methods.sparse.parts.settings import CONFORMANCE


@methods.register("horseshoe")
@dataclass(frozen=True)
class Horseshoe(Method, HorseshoeSettings, GroupSettings, DescentSettings, ElboSettings):
    """A half-Cauchy scale per unit."""

    name: ClassVar[str] = "horseshoe"
    summary: ClassVar[str] = (
        "Selection of layer widths: all incoming weights of a unit share a half-Cauchy scale "
        "(horseshoe)."
    )
    reference: ClassVar[str] = (
        "Ghosh, Yao and Doshi-Velez 2018, Structured variational learning of Bayesian neural "
        "networks with horseshoe priors."
    )
    target: ClassVar[str] = "horseshoe"
    tolerance: ClassVar[float] = 0.1
    conformance_settings: ClassVar[dict[str, Any]] = CONFORMANCE

    threshold: float = setting(
        3.0,
        "Logarithm of noise to signal, sum V[w] / sum E[w]^2, from which a unit is switched "
        "off; 3 is 95 % noise.",
    )

    def adapt(self, model: Model) -> Model:
        """What has groups is random under the prior of their scales."""
        return under_scales(model, unit_places(model.random), "horseshoe", self.name)

    def fit(self, model: Model, fit_job: FitJob) -> Fitted:
        """Put a Gaussian on every weight and scale and maximise the ELBO."""
        values = model.start_values(self.init, fit_job.seed)
        places = unit_places(model.random)
        scales = {"name": "horseshoe", "tau0": self.tau0}
        posterior = group_posterior(
            model, values, places, scales, self, self.threshold, self.name, self.centred
        )
        estimator, optimizer = estimators[self.estimator], partial(adam, rate_lr=self.scale_lr)
        return elbo_fit(model, fit_job, posterior, estimator, self, self, optimizer=optimizer)
