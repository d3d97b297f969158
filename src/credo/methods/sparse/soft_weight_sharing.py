"""Soft weight sharing: point estimates under a mixture of normals learned with them, so that
weights gather at few values.

argmin_w,theta (N / B) sum nll - beta [sum_i log p(w_i given theta) + log p(theta)], p(w) = share
N(0, 1 / l_0) + (1 - share) sum_k pi_k N(m_k, 1 / l_k), with gamma hyperpriors on the precisions l:
without them a component collapses onto a weight and the density has no bound. Start from a
pretrained network: the mixture takes its range from the weights. With ``quantise`` every weight
ends at the mean of its most responsible component and zeros are exact. The mixture after the fit,
codebook of a codec, is ``bnn.model.prior.at(bnn.model.random[name])``: ``loc``, ``scale``,
``weights``. Many modes: the answer depends on the start, and as a point it has no epistemic
uncertainty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch

from credo.core.settings import setting
from credo.engine.elbo_fit import ElboSettings, elbo_fit
from credo.engine.fit_job import FitJob
from credo.engine.method import Method, methods
from credo.engine.model import Fitted, Model
from credo.engine.step import adam
from credo.engine.training_loop import DescentSettings
from credo.estimators import estimators
from credo.priors import ZeroMixture, shared_values
from credo.priors.base import arguments


@methods.register("soft_weight_sharing")
@dataclass(frozen=True)
class SoftWeightSharing(Method, DescentSettings, ElboSettings):
    """Weights that gather at the means of a learned mixture."""

    name: ClassVar[str] = "soft_weight_sharing"
    summary: ClassVar[str] = (
        "Soft weight sharing: a point estimate whose weights gather at few learned values, zero "
        "above all."
    )
    reference: ClassVar[str] = (
        "Nowlan and Hinton 1992, Simplifying neural networks by soft weight-sharing; Ullrich, "
        "Meeds and Welling 2017."
    )
    target: ClassVar[str] = (
        # with more components than weights each has one to itself, whose mean follows it: no pull
        "least_squares"
    )
    tolerance: ClassVar[float] = 0.05
    conformance_settings: ClassVar[dict[str, Any]] = {
        "epochs": 1500,
        "batch_size": None,
        "lr": 0.02,
        "num_components": 4,
        "share": 0.5,
        "quantise": False,
    }
    exceptions: ClassVar[dict[str, str]] = {
        "conjugate_covariance": "a point estimate has no spread"
    }

    num_components: int = setting(
        16, "Components of the mixture besides the one at zero.", ge=1, formerly="components"
    )
    share: float = setting(
        0.99, "Mixing proportion of the component at zero, which stays as it is.", gt=0.0, le=0.9999
    )
    per: str = setting(
        "global", "What has a mixture of its own.", choices=("global", "layer", "tensor")
    )
    mixture_lr: float = setting(
        1.0, "Learning rate of the mixture, as a multiple of the weights'.", gt=0.0
    )
    quantise: bool = setting(
        True, "End with every weight at the mean of its most responsible component."
    )

    def adapt(self, model: Model) -> Model:
        """Weights under the mixture, over the range that they start in; biases and scales, which
        are few, are points without a prior.
        """
        names = [name for name, site in model.random.items() if len(site.shape) > 1]
        own = model.only(names)
        values = model.values(self.init if isinstance(self.init, Mapping) else None)
        low = min((float(values[n].min()) for n in names), default=-1.0)
        high = max((float(values[n].max()) for n in names), default=1.0)
        if not low < high:  # such as weights that are all zero
            low, high = low - 1.0, high + 1.0
        return replace(
            own, prior=shared_values(self.num_components, self.share, low, high, self.per)
        )

    def fit(self, model: Model, fit_job: FitJob) -> Fitted:
        """Fit points and the mixture together, then collapse each weight, if that is asked for."""
        posterior = model.point_posterior(model.start_values(self.init, fit_job.seed))
        optimizer = partial(adam, prior_lr=self.mixture_lr)
        fitted = elbo_fit(
            model, fit_job, posterior, estimators["weights"], self, self, optimizer=optimizer
        )
        return self._collapsed(model, fitted) if self.quantise else fitted

    @torch.no_grad()
    def _collapsed(self, model: Model, fitted: Fitted) -> Fitted:
        """Every random weight at the mean of its most responsible component."""
        values = dict(fitted.posterior.mean())
        for name in model.random:
            learned = arguments(model.prior.at(model.sites[name]))
            mixture = ZeroMixture(self.share, **learned, validate_args=False)
            values[name] = mixture.collapse(values[name])
        return Fitted(model.point_posterior(values), fitted.buffers)
