"""Normalizing-flow posteriors on chosen layers, independent Gaussians on the rest.

w = mean + std * T(z), z standard normal, T a stack of coupling transforms whose density is known
exactly. Captures skew and several bumps that no Gaussian can; its KL is always sampled, and every
weight it covers brings some 3 * hidden * transforms numbers to learn, so choose few layers (the
last by default). Needs the package zuko (``credo-bayes[flows]``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from credo.core.seeds import isolated, mix
from credo.core.settings import setting
from credo.core.sites import choose
from credo.engine.elbo_fit import ElboSettings, elbo_fit
from credo.engine.fit_job import FitJob
from credo.engine.method import Method, methods
from credo.engine.model import Fitted, Model
from credo.engine.training_loop import DescentSettings
from credo.estimators import estimators, pathwise_estimators
from credo.methods.variational.parts.settings import DensitySettings
from credo.posteriors import Flow, Posterior, Start


@methods.register("flow")
@dataclass(frozen=True)
class FlowVI(Method, DescentSettings, ElboSettings, DensitySettings):
    """Variational inference with a flow."""

    name: ClassVar[str] = "flow"
    summary: ClassVar[str] = "Normalizing-flow posterior on chosen layers, mean-field on the rest."
    reference: ClassVar[str] = (
        "Rezende and Mohamed 2015, Variational inference with normalizing flows; Durkan et al. "
        "2019."
    )
    lr: ClassVar[float | None] = 3e-3  # at 1e-2 the transforms may run away
    target: ClassVar[str] = "exact"
    tolerance: ClassVar[float] = 0.15
    conformance_settings: ClassVar[dict[str, Any]] = {
        "epochs": 400,
        "batch_size": None,
        "lr": 0.02,
        "train_samples": 4,
        "hidden": 16,
        "init_std": 0.1,
    }

    layers: Any = setting(
        "last",
        "Layers that get the flow: 'last', 'all', or name patterns.",
        kind=(str, tuple, list),
    )
    kind: str = setting(
        "affine",
        "Transforms: affine couplings, or rational-quadratic splines.",
        choices=("affine", "spline"),
    )
    num_transforms: int = setting(3, "Coupling transforms.", ge=1, formerly="transforms")
    hidden: int = setting(64, "Width of the networks inside the transforms.", ge=1)
    estimator: str = setting(
        "weights",
        "How noise enters training; the flow itself is drawn as weights.",
        choices=pathwise_estimators(),
    )

    def fit(self, model: Model, fit_job: FitJob) -> Fitted:
        """Begin with a flow over the chosen layers and maximise the ELBO."""
        posterior, estimator = self._posterior(model, fit_job.seed), estimators[self.estimator]
        return elbo_fit(model, fit_job, posterior, estimator, self, self, kl=self.kl)

    def _posterior(self, model: Model, seed: int) -> Posterior:
        """A flow over the chosen layers, independent Gaussians over the other random parameters,
        points over the rest.
        """
        values = model.start_values(self.init, seed)
        chosen = choose(model.net, self.layers, model.random, "layers")
        own = {n: values[n] for n in model.random if n in chosen}
        with isolated(mix(seed, "flow")):
            flow = Flow.start(own, self.init_std, self.kind, self.num_transforms, self.hidden)
        rest = model.only([n for n in model.random if n not in chosen])
        others = rest.posterior("mean_field", values, Start(self.init_std)).factors
        return model.with_points([flow, *(f for f in others if f.atoms is None)], values)
