"""Fit a posterior by descent on the negative ELBO: what every method that has one shares."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from credo.core.settings import setting
from credo.engine.elbo import Elbo
from credo.engine.fit_job import FitJob
from credo.engine.model import Fitted, Model
from credo.engine.step import descend
from credo.engine.training_loop import DescentSettings, MakeOptimizer, decays, schedules
from credo.estimators import Estimator, estimators
from credo.posteriors import Posterior


@dataclass(frozen=True)
class ElboSettings:
    """Settings of every method that maximises an ELBO: its draws and the weight of its KL."""

    train_samples: int = setting(1, "Draws per step, over which the objective is averaged.", ge=1)
    beta: float | None = setting(
        None,
        "Weight of the KL; other than 1 tempers the posterior. None: 1, or what a trial on "
        "held-out rows chooses.",
        gt=0.0,
        kind=(int, float),
    )
    kl_schedule: str = setting("constant", "KL weight schedule.", choices=tuple(schedules.names()))
    kl_warmup: int = setting(
        0, "Epochs over which the KL weight rises to beta, for 'linear', 'cosine' and 'late'.", ge=0
    )
    autocast: bool = setting(False, "Run the network in bfloat16 where torch deems it safe.")

    @property
    def kl_weight(self) -> float:
        """``beta``, or 1."""
        return 1.0 if self.beta is None else self.beta


def elbo_fit(
    model: Model,
    fit_job: FitJob,
    posterior: Posterior,
    estimator: Estimator,
    objective: ElboSettings,
    descent: DescentSettings,
    *,
    kl: str = "closed",
    optimizer: MakeOptimizer[Elbo] | None = None,
) -> Fitted:
    """Maximise sum_n E_q[log p(y_n given x_n, w)] - beta KL[q, p] over q.

    ``objective``, ``descent``: settings, which a method has itself. ``kl``: see ``Elbo``.
    ``optimizer``: Adam unless another is given.
    """
    for component in posterior.components():
        estimator.check(component)
    autocast = torch.bfloat16 if objective.autocast else None
    elbo = Elbo(model, posterior, estimator, objective.train_samples, autocast=autocast, kl=kl)
    return descend(
        elbo,
        fit_job,
        beta=objective.kl_weight,
        schedule=schedules[objective.kl_schedule],
        warmup=objective.kl_warmup,
        decay=decays[descent.lr_schedule],
        compile=descent.compile,
        optimizer=optimizer,
    )


def point_fit(
    model: Model, fit_job: FitJob, posterior: Posterior, descent: DescentSettings
) -> Fitted:
    """Maximise sum_n log p(y_n given x_n, w) + log p(w) over a posterior that is a point."""
    return descend(
        Elbo(model, posterior, estimators["weights"]),
        fit_job,
        decay=decays[descent.lr_schedule],
        compile=descent.compile,
    )
