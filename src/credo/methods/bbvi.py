"""Black-box variational inference: the gradient of the ELBO by the score function, grad E_q[f] = E_q[(f - b) grad log q].

Needs only the value of the likelihood, so it serves discrete weights and likelihoods without a gradient. Its variance grows with the
number of weights: control variates are on by default, and with more than a few hundred continuous weights ``vi`` is the better choice.
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
from credo.estimators import Estimator, Score
from credo.estimators.score import CONTROLS
from credo.posteriors import Posterior


@methods.register("bbvi")
@dataclass(frozen=True)
class BBVI(Variational):
    """Variational inference by the score function."""

    name: ClassVar[str] = "bbvi"
    summary: ClassVar[str] = "Black-box variational inference: score-function gradients with control variates."
    reference: ClassVar[str] = "Ranganath et al. 2014, Black box variational inference; Kool et al. 2019 (leave-one-out)."
    lr: ClassVar[float] = 1e-2
    target: ClassVar[str] = "mean_field"
    tolerance: ClassVar[float] = 0.15
    small: ClassVar[dict[str, Any]] = {"epochs": 600, "batch_size": None, "lr": 0.05, "train_samples": 6}

    train_samples: int = setting(10, "Draws per step, averaged.", ge=1)
    posterior: str = setting("mean_field", "Family of q.", choices=("mean_field", "low_rank", "kron", "full", "discrete"))
    control: str = setting("leave_one_out", "What is subtracted from the integrand.", choices=CONTROLS)
    rao_blackwell: bool = setting(True, "Leave terms out of a weight's gradient that do not depend on it.")
    scale: str = setting("log", "Parameterisation of the standard deviation.", choices=("log", "softplus"))
    rank: int = setting(4, "Factors of the low-rank family.", ge=1)
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
        """The score function with the chosen control variates."""
        return Score(self.control, self.rao_blackwell)
