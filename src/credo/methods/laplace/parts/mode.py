"""The mode that Laplace's approximation is about: a network trained before, with its noise, and the
Gaussian around it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from credo.curvature.blocks import Block, Precision
from credo.engine.draws import Draws
from credo.engine.fit_job import FitJob, Fitted
from credo.engine.model import Model
from credo.engine.outputs import sampled_outputs
from credo.posteriors import Params, Posterior


class Mode(NamedTuple):
    """Where curvature is measured: a model, the weights, the network's buffers, and the data."""

    model: Model
    values: Params
    buffers: Mapping[str, Tensor]
    fit_job: FitJob

    @classmethod
    def of(cls, model: Model, fit_job: FitJob, fitted: Fitted) -> Mode:
        """The weights that a descent ended with."""
        values = {n: v.detach() for n, v in fitted.posterior.mean().items()}
        return cls(model, values, fitted.buffers, fit_job)


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


def gaussian_posterior(
    model: Model, values: Params, blocks: Sequence[Block], precision: Precision
) -> Posterior:
    """The Gaussian of every block, and points for what is not random."""
    random = {name: values[name] for name in model.random}
    return model.with_points([block.family(random, precision) for block in blocks], dict(values))


def evidence_row(epoch: int, nll: float, log_evidence: float, seconds: float) -> dict[str, Any]:
    """What the history says of the finished approximation, in nats."""
    row = {"epoch": epoch, "nll": nll, "kl": -log_evidence - nll, "elbo": log_evidence}
    return row | {"log_evidence": log_evidence, "seconds": seconds}
