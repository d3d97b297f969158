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
from torch import Tensor

from credo.core.settings import setting
from credo.engine.elbo import Elbo
from credo.engine.elbo_fit import ElboMethod
from credo.engine.fit_job import FitJob, Fitted
from credo.engine.initial_posterior import point_posterior
from credo.engine.method import methods
from credo.engine.model import Model
from credo.engine.training_loop import MakeOptimizer
from credo.estimators import Estimator, estimators
from credo.posteriors import Posterior
from credo.priors import ZeroMixture, shared_values


@methods.register("soft_weight_sharing")
@dataclass(frozen=True)
class SoftWeightSharing(ElboMethod):
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
        "components": 4,
        "share": 0.5,
        "quantise": False,
    }
    exceptions: ClassVar[dict[str, str]] = {
        "conjugate_covariance": "a point estimate has no spread"
    }

    components: int = setting(16, "Components of the mixture besides the one at zero.", ge=1)
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
        return replace(own, prior=shared_values(self.components, self.share, low, high, self.per))

    def make_posterior(self, model: Model, fit_job: FitJob) -> Posterior:
        """Points."""
        return point_posterior(model, self.start(model, fit_job))

    def make_estimator(self) -> Estimator:
        """Nothing is random."""
        return estimators["weights"]

    def make_optimizer(self, model: Model) -> MakeOptimizer[Elbo] | None:
        """Adam, with a pace of its own for the mixture."""
        return partial(_adam, factor=self.mixture_lr)

    @torch.no_grad()
    def finish(self, model: Model, fit_job: FitJob, fitted: Fitted) -> Fitted:
        """Collapse, if that is asked for."""
        if not self.quantise:
            return fitted
        values = dict(fitted.posterior.mean())
        for name in model.random:
            mixture = model.prior.at(model.sites[name])
            assert isinstance(mixture, ZeroMixture)
            values[name] = mixture.collapse(values[name])
        return Fitted(point_posterior(model, values), fitted.buffers)


def _adam(elbo: Elbo, lr: float | Tensor, num_data: int, factor: float) -> torch.optim.Optimizer:
    """Fused Adam; what is learned of the prior at ``factor`` times the learning rate."""
    of_prior = [p for p in elbo.prior_parts.parameters() if p.requires_grad]
    known = {id(p) for p in of_prior}
    groups: list[dict[str, Any]] = [
        {"params": [p for p in elbo.parameters() if p.requires_grad and id(p) not in known]},
        {"params": of_prior, "lr": lr * factor, "factor": factor},
    ]
    return torch.optim.Adam(groups, lr=lr, fused=True, capturable=isinstance(lr, Tensor))
