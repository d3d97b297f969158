"""MC dropout: dropout at training and at prediction time, read as a variational posterior.

q(w): every input unit of a layer is dropped with probability p, w = W z / (1 - p), z ~ Bernoulli(1
- p). Masking activations (``estimator="local"``) and masking the columns of weights
(``estimator="weights"``) are the same posterior. Under the prior N(0, l^-2) the objective is the
mean nll plus l^2 / (2 N (1 - p)) norm(W)^2, which is what a weight decay of l^2 / (N (1 - p)) does:
give ``length_scale`` instead of a decay, and it stays right when N or p changes. A network with
dropout of its own is used as it is. The noise does not shrink as data come in, since p is chosen;
``concrete_dropout`` learns it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from credo.engine.elbo_fit import ElboSettings, elbo_fit
from credo.engine.fit_job import FitJob
from credo.engine.method import Method, methods
from credo.engine.model import Fitted, Model
from credo.engine.noise_places import NoiseSettings, noise_places, open_rates, with_length_scale
from credo.engine.training_loop import DescentSettings
from credo.estimators import estimators
from credo.posteriors import Dropout


@methods.register("mc_dropout")
@dataclass(frozen=True)
class MCDropout(Method, DescentSettings, ElboSettings, NoiseSettings):
    """Bernoulli masks at fixed rates."""

    name: ClassVar[str] = "mc_dropout"
    summary: ClassVar[str] = (
        "MC dropout: masks on units at fixed rates; uses a network's own dropout."
    )
    reference: ClassVar[str] = (
        "Gal and Ghahramani 2016, Dropout as a Bayesian approximation; 2016, A theoretically "
        "grounded application."
    )
    network_noise: ClassVar[str | None] = "dropout"
    tries: ClassVar[bool] = True
    target: ClassVar[str] = "dropout"
    tolerance: ClassVar[float] = 0.05
    conformance_settings: ClassVar[dict[str, Any]] = {
        "epochs": 600,
        "batch_size": None,
        "lr": 0.02,
        "train_samples": 8,
    }

    def alternatives(self, model: Model) -> Mapping[str, Sequence[Any]]:
        return open_rates(self, model)

    def adapt(self, model: Model) -> Model:
        """Under the prior of the length scale, if one is given."""
        return with_length_scale(model, self.length_scale)

    def fit(self, model: Model, fit_job: FitJob) -> Fitted:
        """Put masks on units and maximise the ELBO; noise of the network's own is used as it is."""
        places, rates = noise_places(
            model, fit_job.source.example(2), self, self.name, as_it_is=True
        )
        values = model.start_values(self.init, fit_job.seed)
        random = {n: values[n] for n in model.random}
        family = Dropout.start(random, places, rates)
        posterior = model.with_points([family], values)
        return elbo_fit(model, fit_job, posterior, estimators[self.estimator], self, self)
