"""Fit a posterior by descent on the negative ELBO: settings, optimizer and loop of every method
that has one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from credo.core.settings import setting
from credo.engine.elbo import Elbo
from credo.engine.fit_job import FitJob
from credo.engine.model import Fitted, Model
from credo.engine.step import make_step
from credo.engine.training_loop import (
    DescentSettings,
    MakeOptimizer,
    Schedule,
    constant,
    decays,
    hold,
    schedules,
    train,
)
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


def descend(
    elbo: Elbo,
    fit_job: FitJob,
    *,
    beta: float = 1.0,
    schedule: Schedule = constant,
    warmup: int = 0,
    decay: Callable[[float], float] = hold,
    compile: bool | str = False,
    optimizer: MakeOptimizer[Elbo] | None = None,
) -> Fitted:
    """Minimise the negative ELBO with Adam, or with the optimizer that ``optimizer(elbo, lr,
    num_data)`` makes.
    """
    return train(
        elbo, fit_job, optimizer or adam, make_step, beta, schedule, warmup, decay, compile
    )


def adam(
    elbo: Elbo, lr: float | Tensor, num_data: int, rate_lr: float = 1.0, prior_lr: float = 1.0
) -> torch.optim.Optimizer:
    """Fused Adam over everything that is learned; parameters that each steer the noise of many
    weights, and those of the prior, at ``rate_lr`` and ``prior_lr`` times the learning rate.
    """
    rates = [p for family in elbo.posterior.factors for p in family.rate_params()]
    paces = [(rates, rate_lr), (list(elbo.prior_parts.parameters()), prior_lr)]
    own_pace = {id(p) for params, factor in paces for p in params if factor != 1.0}
    groups: list[dict[str, Any]] = [
        {"params": [p for p in elbo.parameters() if p.requires_grad and id(p) not in own_pace]}
    ]
    for params, factor in paces:
        if factor != 1.0 and (own := [p for p in params if p.requires_grad]):
            groups.append({"params": own, "lr": lr * factor, "factor": factor})
    return torch.optim.Adam(groups, lr=lr, fused=True, capturable=isinstance(lr, Tensor))
