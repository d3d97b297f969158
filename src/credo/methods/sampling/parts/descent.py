"""Where chains of no given length begin: each descends on -log p(D, w) from a random start of its
own, on batches, with what is fitted alongside, so that the warm-up need not find the way down.

The descent is short: at the bottom itself learned noise would be that of targets known by heart.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from credo.engine.fit_job import FitJob
from credo.engine.training_loop import decays
from credo.methods.sampling.parts.density import Density
from credo.methods.sampling.parts.fitted_alongside import FittedAlongside
from credo.methods.sampling.parts.stochastic_gradient import StochasticGradient

SHARE = 0.1  # of the budget of gradients
FEWEST, MOST = 100, 300  # steps


def num_steps(fit_job: FitJob, chains: int) -> int:
    """Steps of Adam that a tenth of the budget pays for, between 100 and 300."""
    size = fit_job.problem.batch_of_chains()
    return max(FEWEST, min(MOST, int(SHARE * fit_job.problem.num_gradients(chains, size))))


def descend(density: Density, fit_job: FitJob, position: Tensor) -> Tensor:
    """Chains ``(C, P)`` after Adam's steps at its usual rate, which falls to nothing."""
    problem, chains = fit_job.problem, len(position)
    steps, fall = num_steps(fit_job, chains), decays["cosine"]
    alongside = FittedAlongside(density, problem.adam_lr, steps)
    batches = replace(fit_job, batch_size=problem.batch_of_chains())
    gradient = StochasticGradient(density, batches, chains, alongside)
    moved = position.clone()
    optimizer = torch.optim.Adam([moved], lr=problem.adam_lr)
    for index in range(steps):
        optimizer.param_groups[0]["lr"] = problem.adam_lr * fall(index / steps)
        moved.grad = -gradient.at(moved, index)[1].to(moved.dtype) / problem.num_data
        optimizer.step()
    return moved.detach()
