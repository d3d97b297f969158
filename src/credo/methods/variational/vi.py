"""Variational inference: maximise E_q[log p(D given w)] - KL[q, p] over a family of posteriors.

The data term is scaled by N / B and the KL is a sum over weights, so the objective is the evidence
lower bound itself. Mean-field VI underfits when the initial standard deviation is large,
understates correlations, and is too sure of itself between clusters of data; look at ``history`` to
see which of the two parts moves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from credo.core.settings import setting
from credo.engine.elbo_fit import ElboSettings, elbo_fit
from credo.engine.fit_job import FitJob
from credo.engine.method import Method, methods
from credo.engine.model import Fitted, Model
from credo.engine.training_loop import DescentSettings
from credo.estimators import estimators, weight_estimators
from credo.methods.variational.parts.settings import DensitySettings, FamilySettings
from credo.methods.variational.parts.tempered import tempered
from credo.posteriors import Start


@methods.register("vi")
@dataclass(frozen=True)
class VI(Method, DescentSettings, ElboSettings, DensitySettings, FamilySettings):
    """Bayes by Backprop and its structured relatives."""

    name: ClassVar[str] = "vi"
    summary: ClassVar[str] = "Variational inference: a Gaussian posterior by the ELBO."
    reference: ClassVar[str] = (
        "Blundell et al. 2015, Weight uncertainty in neural networks; Kingma et al. 2015; Wen et "
        "al. 2018."
    )
    lr: ClassVar[float | None] = (
        # at 1e-3 the standard deviations of a small problem do not leave their start within 2,000
        # steps
        1e-2
    )
    target: ClassVar[str] = "mean_field"
    tries: ClassVar[bool] = True
    trial_share: ClassVar[float] = 0.25
    tolerance: ClassVar[float] = 0.1
    conformance_settings: ClassVar[dict[str, Any]] = {
        "epochs": 600,
        "batch_size": None,
        "lr": 0.02,
        "posterior": "mean_field",
    }

    estimator: str = setting("local", "How noise enters training.", choices=weight_estimators())
    temperature: float = setting(
        0.5, "Temperature of the Gumbel relaxation of discrete weights.", gt=0.0
    )

    def alternatives(self, model: Model) -> Mapping[str, Sequence[Any]]:
        return tempered(self)

    def fit(self, model: Model, fit_job: FitJob) -> Fitted:
        """Begin with q around the network's values and maximise the ELBO."""
        values = model.start_values(self.init, fit_job.seed)
        start = Start(self.init_std, self.scale, self.rank, self.levels, fit_job.seed)
        posterior = model.posterior(self.posterior, values, start)
        estimator = estimators[self.estimator].at(self.temperature)
        return elbo_fit(model, fit_job, posterior, estimator, self, self, kl=self.kl)
