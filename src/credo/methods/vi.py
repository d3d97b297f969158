"""Variational inference: maximise E_q[log p(D given w)] - KL[q, p] over a family of posteriors.

The data term is scaled by N / B and the KL is a sum over weights, so the objective is the evidence lower bound itself.
Mean-field VI underfits when the initial standard deviation is large, understates correlations, and is too sure of itself
between clusters of data; look at ``history`` to see which of the two parts moves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from credo.core.settings import setting
from credo.engine.build import start_posterior
from credo.engine.elbo import Elbo
from credo.engine.gradient import GradientMethod
from credo.engine.job import Fitted, Job
from credo.engine.method import methods
from credo.engine.model import Model
from credo.engine.schedules import schedules
from credo.estimators import estimators


@methods.register("vi")
@dataclass(frozen=True)
class VI(GradientMethod):
    """Bayes by Backprop and its structured relatives."""

    name: ClassVar[str] = "vi"
    summary: ClassVar[str] = "Variational inference: a Gaussian posterior by the ELBO."
    reference: ClassVar[str] = "Blundell et al. 2015, Weight uncertainty in neural networks; Kingma et al. 2015; Wen et al. 2018."
    lr: ClassVar[float] = 1e-2  # at 1e-3 the standard deviations of a small problem do not leave their start within 2,000 steps
    target: ClassVar[str] = "mean_field"
    tolerance: ClassVar[float] = 0.1
    small: ClassVar[dict[str, Any]] = {"epochs": 600, "batch_size": None, "lr": 0.02, "posterior": "mean_field"}

    posterior: str = setting("mean_field", "Family of q.", choices=("mean_field", "low_rank", "kron", "full"))
    estimator: str = setting("local", "How noise enters training.", choices=("local", "weights", "flipout"))
    train_samples: int = setting(1, "Draws per step, averaged.", ge=1)
    init_std: float = setting(0.01, "Initial standard deviation of every weight.", gt=0.0)
    scale: str = setting("log", "Parameterisation of the standard deviation.", choices=("log", "softplus"))
    rank: int = setting(4, "Factors of the low-rank family.", ge=1)
    beta: float = setting(1.0, "Weight of the KL; other than 1 tempers the posterior.", gt=0.0)
    kl_schedule: str = setting("constant", "Course of the KL's weight.", choices=("constant", "linear", "cosine", "blundell"))
    kl_warmup: int = setting(0, "Epochs over which 'linear' and 'cosine' rise to beta.", ge=0)
    autocast: bool = setting(False, "Run the network in bfloat16 where torch deems it safe.")

    def fit(self, model: Model, job: Job) -> Fitted:
        """Descend on the negative ELBO."""
        values = self.start(model, job)
        posterior = start_posterior(model, self.posterior, values, self.init_std, self.rank, self.scale, job.seed)
        autocast = torch.bfloat16 if self.autocast else None
        elbo = Elbo(model, posterior, estimators[self.estimator], self.train_samples, autocast=autocast)
        return self.descend(elbo, job, beta=self.beta, schedule=schedules[self.kl_schedule], warmup=self.kl_warmup)
