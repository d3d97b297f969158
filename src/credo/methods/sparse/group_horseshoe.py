"""Group horseshoe: the weights of a unit share a half-Cauchy scale, and a layer shares another.

w = z v, v ~ N(mu, sigma^2) under N(0, 1), z = z_local z_global with z_local ~ C+(0, 1) per group
and z_global ~ C+(0, tau0) per layer. Squares of half-Cauchy numbers are products of a Gamma and an
inverse-Gamma number, each with a log-normal q, so that all KLs are closed. A group is pruned when
noise drowns it, log(sum V[w] / sum E[w]^2) >= threshold. ``centred=True`` gives q to w itself and
leaves z in the prior: the same model, another q, with less noise in the weights and slower scales.
Biases and normalisation are points.
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
    places_of,
    under_scales,
)
from credo.methods.sparse.parts.settings import CONFORMANCE


@methods.register("group_horseshoe")
@dataclass(frozen=True)
class GroupHorseshoe(Method, HorseshoeSettings, GroupSettings, DescentSettings, ElboSettings):
    """A log-normal scale per group and per layer under half-Cauchy priors."""

    name: ClassVar[str] = "group_horseshoe"
    summary: ClassVar[str] = (
        "Group sparsity: weights of a unit share a half-Cauchy scale (horseshoe); whole units are "
        "pruned."
    )
    reference: ClassVar[str] = (
        "Louizos, Ullrich and Welling 2017, Bayesian compression for deep learning."
    )
    target: ClassVar[str] = "group_horseshoe"
    tolerance: ClassVar[float] = 0.1
    conformance_settings: ClassVar[dict[str, Any]] = CONFORMANCE

    groups: str = setting(
        "auto",
        "Groups that share a scale: input units, output units, or 'auto': filters, gates and "
        "units of recurrent layers, words, else inputs.",
        choices=("auto", "input", "output"),
    )
    threshold: float = setting(
        3.0,
        "Logarithm of noise to signal, sum V[w] / sum E[w]^2, from which a group is pruned; "
        "3 is 95 % noise.",
    )

    def adapt(self, model: Model) -> Model:
        """What has groups is random under the prior of their scales."""
        return under_scales(model, places_of(model.random, self.groups), "horseshoe", self.name)

    def fit(self, model: Model, fit_job: FitJob) -> Fitted:
        """Put a Gaussian on every weight and scale and maximise the ELBO."""
        values = model.start_values(self.init, fit_job.seed)
        places = places_of(model.random, self.groups)
        scales = {"name": "horseshoe", "tau0": self.tau0}
        posterior = group_posterior(
            model, values, places, scales, self, self.threshold, self.name, self.centred
        )
        estimator, optimizer = estimators[self.estimator], partial(adam, rate_lr=self.scale_lr)
        return elbo_fit(model, fit_job, posterior, estimator, self, self, optimizer=optimizer)
