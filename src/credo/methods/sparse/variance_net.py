"""Variance networks: weights with mean zero, N(0, sigma^2), that store what they know in how much
they vary.

Under the log-uniform prior the KL does not depend on sigma (zero by convention), so the objective
is the expected log- likelihood alone, with noise on the outputs of layers (the local estimator).
One draw is a poor network and the average over many draws a better one; the mean of the weights is
zero and predicts nothing, so ``shortcut="mean"`` is refused. A study of what averaging over draws
can do, and a reminder that pruning by signal-to-noise ratio is not safe for every posterior; not a
way to better predictions. The last layer keeps its means unless ``layers`` says otherwise: with
logits of mean zero E[log softmax_y] = -E[logsumexp] <= -log C, so that no sigma beats chance under
this objective, and in regression the best sigma is zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from credo.core.errors import SettingError
from credo.core.settings import setting
from credo.core.sites import by_dtype, choose
from credo.engine.elbo_fit import ElboSettings, elbo_fit
from credo.engine.fit_job import FitJob
from credo.engine.method import Method, methods
from credo.engine.model import Fitted, Model
from credo.engine.training_loop import DescentSettings
from credo.estimators import estimators, pathwise_estimators
from credo.methods.sparse.parts.log_uniform import log_uniform_over
from credo.posteriors import ZeroMean


@methods.register("variance_net")
@dataclass(frozen=True)
class VarianceNet(Method, DescentSettings, ElboSettings):
    """Deviations learned around means of zero."""

    name: ClassVar[str] = "variance_net"
    summary: ClassVar[str] = (
        "Variance networks: zero-mean weights, whose variances alone are learned."
    )
    reference: ClassVar[str] = (
        "Neklyudov, Molchanov, Ashukha and Vetrov 2019, Variance networks: when expectation does "
        "not meet your expectations."
    )
    target: ClassVar[str] = "variance_net"
    tolerance: ClassVar[float] = 0.05
    conformance_settings: ClassVar[dict[str, Any]] = {
        "epochs": 600,
        "batch_size": None,
        "lr": 0.05,
        "train_samples": 4,
    }
    exceptions: ClassVar[dict[str, str]] = {
        "conjugate_covariance": "in linear regression the best deviations are zero, which a "
        "positive number approaches and never reaches"
    }

    layers: Any = setting(
        "hidden",
        "Layers whose weights have mean zero: 'hidden' (all layers but the last, if there "
        "are several), 'all' or name patterns; the rest are points.",
        kind=(str, tuple, list),
    )
    init_std: float = setting(
        1.0,
        "Initial standard deviation, as a multiple of the absolute value a weight starts at.",
        gt=0.0,
    )
    estimator: str = setting("local", "How noise enters training.", choices=pathwise_estimators())

    def adapt(self, model: Model) -> Model:
        """The chosen layers' weights are random under the log-uniform prior; biases and all else
        are points without a prior.
        """
        sites = model.random | model.point
        ordered = {n: sites[n] for n, _ in model.net.named_parameters() if n in sites}
        if self.layers == "hidden":
            last = [site.module for site in ordered.values() if len(site.shape) > 1][-1:]
            chosen = {n for n, site in ordered.items() if site.module not in last} or set(ordered)
        else:
            chosen = choose(model.net, self.layers, ordered, "layers")
        names = [
            n
            for n, site in ordered.items()
            if n in chosen and n in model.random and len(site.shape) > 1
        ]
        if not names:
            raise SettingError(
                f"variance_net: layers={self.layers!r} selects no random parameter with two axes "
                "or more; expected weights of layers, e.g. "
                "layers='hidden'."
            )
        return log_uniform_over(model, names, self.name)

    def fit(self, model: Model, fit_job: FitJob) -> Fitted:
        """Begin with deviations of the size of the starting weights and maximise the ELBO."""
        values = model.start_values(self.init, fit_job.seed)
        families = []
        for sites in by_dtype(model.random):
            own = {site.name: values[site.name] for site in sites}
            families.append(ZeroMean.start(own, self.init_std))
        posterior = model.with_points(families, values)
        return elbo_fit(model, fit_job, posterior, estimators[self.estimator], self, self)
