"""The mode that Laplace's approximation is about, and that of a network trained before, with its
noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from credo.engine.fit_job import FitJob
from credo.engine.model import Model
from credo.engine.outputs import Draws, sampled_outputs
from credo.posteriors import Params


class Mode(NamedTuple):
    """Where curvature is measured: a model, the weights, the network's buffers, and the data."""

    model: Model
    values: Params
    buffers: Mapping[str, Tensor]
    fit_job: FitJob


def trained_before(model: Model, fit_job: FitJob, values: Params) -> Mode:
    """A network that is trained already: only the likelihood's noise is fitted to it."""
    if fit_job.run is not None:
        fit_job.run.history(-1)
    buffers = model.buffers()
    fit_noise(model, fit_job, values, buffers)
    return Mode(model, {n: v.detach() for n, v in values.items()}, buffers, fit_job)


def fit_noise(model: Model, fit_job: FitJob, values: Params, buffers: Mapping[str, Tensor]) -> None:
    """What the likelihood learns, such as noise, by maximum likelihood given a network that is
    trained already.
    """
    learned = [p for p in model.likelihood.parameters() if p.requires_grad]
    if not learned:
        return
    parts = [
        (sampled_outputs(model, Draws.point(values), x, buffers, 0, 1000)[0][0], y)
        for x, y in fit_job.source(None, fit_job.batch_size)
    ]
    outputs = torch.cat([f for f, _ in parts])
    y = model.likelihood.check_pair(outputs, torch.cat([y for _, y in parts]))
    mover = torch.optim.LBFGS(learned, max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        mover.zero_grad()
        loss = -model.likelihood.log_prob(outputs, y).mean()
        loss.backward()
        return loss

    with torch.enable_grad():
        mover.step(closure)
    for parameter in learned:
        parameter.grad = None
