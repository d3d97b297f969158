"""Black-box variational inference: the gradient of the ELBO by the score function, grad E_q[f] =
E_q[(f - b) grad log q].

Needs only the value of the likelihood, so it serves discrete weights and likelihoods without a
gradient. Its variance grows with the number of weights: control variates are on by default, and
with more than a few hundred continuous weights ``vi`` is the better choice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from credo.core.settings import setting
from credo.engine.elbo_fit import ElboSettings, elbo_fit
from credo.engine.fit_job import FitJob
from credo.engine.method import Method, methods
from credo.engine.model import Fitted, Model
from credo.engine.training_loop import DescentSettings
from credo.estimators import Score
from credo.estimators.score import CONTROLS
from credo.methods.variational.parts.settings import DensitySettings, FamilySettings
from credo.posteriors import Start


@methods.register("bbvi")
@dataclass(frozen=True)
class BBVI(Method, DescentSettings, ElboSettings, DensitySettings, FamilySettings):
    """Variational inference by the score function."""

    name: ClassVar[str] = "bbvi"
    summary: ClassVar[str] = (
        "Black-box variational inference: score-function gradients with control variates."
    )
    reference: ClassVar[str] = (
        "Ranganath et al. 2014, Black box variational inference; Kool et al. 2019 (leave-one-out)."
    )
    lr: ClassVar[float | None] = 1e-2
    target: ClassVar[str] = "mean_field"
    tolerance: ClassVar[float] = 0.15
    conformance_settings: ClassVar[dict[str, Any]] = {
        "epochs": 600,
        "batch_size": None,
        "lr": 0.05,
        "train_samples": 6,
    }

    train_samples: int = setting(10, "Draws per step, over which the objective is averaged.", ge=1)
    control: str = setting(
        "leave_one_out", "Control variate: what is subtracted from the integrand.", choices=CONTROLS
    )
    rao_blackwell: bool = setting(
        True, "Leave terms out of a weight's gradient that do not depend on it."
    )

    def fit(self, model: Model, fit_job: FitJob) -> Fitted:
        """As ``vi``, with the score function's gradient."""
        values = model.start_values(self.init, fit_job.seed)
        start = Start(self.init_std, self.scale, self.rank, self.levels, fit_job.seed)
        posterior = model.posterior(self.posterior, values, start)
        estimator = Score(self.control, self.rao_blackwell)
        return elbo_fit(model, fit_job, posterior, estimator, self, self, kl=self.kl)
