"""Variational inference: maximise E_q[log p(D given w)] - KL[q, p] over a family of posteriors.

The data term is scaled by N / B and the KL is a sum over weights, so the objective is the evidence lower bound itself.
Mean-field VI underfits when the initial standard deviation is large, understates correlations, and is too sure of itself
between clusters of data; look at ``history`` to see which of the two parts moves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from credo.core.settings import setting
from credo.engine.build import discrete_posterior, start_posterior
from credo.engine.job import Job
from credo.engine.method import methods
from credo.engine.model import Model
from credo.engine.variational import Variational
from credo.estimators import Estimator, estimators
from credo.posteriors import Posterior

ESTIMATORS = ("local", "weights", "per_example", "flipout", "score", "straight_through", "gumbel", "moments")


@methods.register("vi")
@dataclass(frozen=True)
class VI(Variational):
    """Bayes by Backprop and its structured relatives."""

    name: ClassVar[str] = "vi"
    summary: ClassVar[str] = "Variational inference: a Gaussian posterior by the ELBO."
    reference: ClassVar[str] = "Blundell et al. 2015, Weight uncertainty in neural networks; Kingma et al. 2015; Wen et al. 2018."
    lr: ClassVar[float] = 1e-2  # at 1e-3 the standard deviations of a small problem do not leave their start within 2,000 steps
    target: ClassVar[str] = "mean_field"
    tolerance: ClassVar[float] = 0.1
    small: ClassVar[dict[str, Any]] = {"epochs": 600, "batch_size": None, "lr": 0.02, "posterior": "mean_field"}

    posterior: str = setting("mean_field", "Family of q.", choices=("mean_field", "low_rank", "kron", "full", "discrete"))
    estimator: str = setting("local", "How noise enters training.", choices=ESTIMATORS)
    scale: str = setting("log", "Parameterisation of the standard deviation.", choices=("log", "softplus"))
    rank: int = setting(4, "Factors of the low-rank family.", ge=1)
    temperature: float = setting(0.5, "Temperature of the Gumbel relaxation of discrete weights.", gt=0.0)
    levels: Any = setting(
        (-1.0, 1.0),
        "Values of the discrete family; of the size of trained weights, about 2 / sqrt(fan-in).",
        kind=(tuple, list),
    )

    def make_posterior(self, model: Model, job: Job) -> Posterior:
        """The chosen family at the starting values."""
        values = self.start(model, job)
        if self.posterior == "discrete":
            return discrete_posterior(model, values, self.levels)
        return start_posterior(model, self.posterior, values, self.init_std, self.rank, self.scale, job.seed)

    def make_estimator(self) -> Estimator:
        """The chosen estimator."""
        return estimators[self.estimator].at(self.temperature)
