"""Group normal-Jeffreys: the weights of a unit share a scale, and units whose scale is all noise
leave the network.

w = z v with z ~ q(z) = N(mu_z, sigma_z^2) for each group under p(z) ~ 1 / abs(z), and v ~ N(mu,
sigma^2) under N(0, 1). The KL of a scale falls to zero as alpha = sigma_z^2 / mu_z^2 grows: a group
that the data do not need is better all noise, and at log alpha = ``threshold`` it is pruned whole.
The prior is improper, so there is no evidence. Biases and normalisation are points. The KL sets in
late: a network that has not learned anything yet would be pruned whole.
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
    group_posterior,
    places_of,
    under_scales,
)
from credo.methods.sparse.parts.settings import CONFORMANCE


@methods.register("group_normal_jeffreys")
@dataclass(frozen=True)
class GroupNormalJeffreys(Method, GroupSettings, DescentSettings, ElboSettings):
    """A Gaussian scale per group under a log-uniform prior."""

    name: ClassVar[str] = "group_normal_jeffreys"
    summary: ClassVar[str] = (
        "Group sparsity: weights of a unit share a Gaussian scale under a log-uniform prior; "
        "whole units are pruned."
    )
    reference: ClassVar[str] = (
        "Louizos, Ullrich and Welling 2017, Bayesian compression for deep learning."
    )
    target: ClassVar[str] = "group_normal_jeffreys"
    tolerance: ClassVar[float] = 0.1
    conformance_settings: ClassVar[dict[str, Any]] = CONFORMANCE

    threshold: float = setting(
        3.0,
        "Value of log alpha of its scale from which a group is pruned; 3 is a drop rate of 0.95.",
    )
    groups: str = setting(
        "auto",
        "Groups that share a scale: input units, output units, or 'auto': filters, gates and "
        "units of recurrent layers, words, else inputs.",
        choices=("auto", "input", "output"),
    )

    def adapt(self, model: Model) -> Model:
        """What has groups is random under the prior of their scales."""
        places = places_of(model.random, self.groups)
        return under_scales(model, places, "normal_jeffreys", self.name)

    def fit(self, model: Model, fit_job: FitJob) -> Fitted:
        """Put a Gaussian on every weight and scale and maximise the ELBO."""
        values = model.start_values(self.init, fit_job.seed)
        places, scales = places_of(model.random, self.groups), {"name": "normal_jeffreys"}
        posterior = group_posterior(model, values, places, scales, self, self.threshold, self.name)
        estimator, optimizer = estimators[self.estimator], partial(adam, rate_lr=self.scale_lr)
        return elbo_fit(model, fit_job, posterior, estimator, self, self, optimizer=optimizer)
