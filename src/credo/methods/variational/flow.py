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
from credo.engine.elbo_fit import Variational
from credo.engine.fit_job import FitJob
from credo.engine.initial_posterior import start_posterior, with_points
from credo.engine.method import methods
from credo.engine.model import Model
from credo.estimators import Estimator, estimators
from credo.posteriors import Flow, Posterior


@methods.register("flow")
@dataclass(frozen=True)
class FlowVI(Variational):
    """Variational inference with a flow."""

    name: ClassVar[str] = "flow"
    summary: ClassVar[str] = "Normalizing-flow posterior on chosen layers, mean-field on the rest."
    reference: ClassVar[str] = (
        "Rezende and Mohamed 2015, Variational inference with normalizing flows; Durkan et al. "
        "2019."
    )
    lr: ClassVar[float] = 3e-3  # at 1e-2 the transforms may run away
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
    transforms: int = setting(3, "Coupling transforms.", ge=1)
    hidden: int = setting(64, "Width of the networks inside the transforms.", ge=1)
    estimator: str = setting(
        "weights",
        "How noise enters training.",
        choices=("weights", "local", "flipout", "per_example"),
    )

    def make_posterior(self, model: Model, fit_job: FitJob) -> Posterior:
        """A flow over the chosen layers, independent Gaussians over the other random parameters,
        points over the rest.
        """
        values = self.start(model, fit_job)
        chosen = choose(model.net, self.layers, model.random, "layers")
        with isolated(mix(fit_job.seed, "flow")):
            flow = Flow.start(
                {n: values[n] for n in model.random if n in chosen},
                self.init_std,
                self.kind,
                self.transforms,
                self.hidden,
            )
        rest = (
            model.only([n for n in model.random if n not in chosen])
            if len(chosen) < len(model.random)
            else None
        )
        others = (
            []
            if rest is None
            else start_posterior(
                rest, "mean_field", values, self.init_std, 1, "log", fit_job.seed
            ).members
        )
        return with_points(
            model, values, [flow, *[family for family in others if family.atoms is None]]
        )

    def make_estimator(self) -> Estimator:
        """The chosen estimator; the flow itself is drawn as weights."""
        return estimators[self.estimator]
