"""Parts of Laplace's approximation beside the curvature itself: training with a prior that is tuned
on the way, noise, and the Gaussian.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from credo.core.errors import SettingError
from credo.curvature.blocks import Block, FullBlock, Precision
from credo.curvature.centred_prior import centred
from credo.curvature.log_evidence import GRID, Centred
from credo.curvature.structures import Measured
from credo.data.source import Source
from credo.engine.draws import Draws
from credo.engine.elbo import Elbo
from credo.engine.fit_job import FitJob
from credo.engine.initial_posterior import with_points
from credo.engine.model import Model
from credo.engine.outputs import sampled_outputs
from credo.estimators import estimators
from credo.posteriors import Full, MeanField, Params, Posterior, PosteriorPrior
from credo.predictive import Predictive
from credo.predictive.shortcuts import shortcut_named
from credo.priors import Scaled

POINTS = 64  # that stand for a prediction while widths are compared on validation data


class OnlineElbo(Elbo):
    """A point estimate whose prior is renewed every few epochs (Immer et al. 2021)."""

    def __init__(
        self,
        model: Model,
        posterior: Posterior,
        renew: Callable[[Params, Mapping[str, Tensor]], None],
        every: int,
    ) -> None:
        super().__init__(model, posterior, estimators["weights"])
        self._renew, self._every = renew, every

    def after_epoch(self, epoch: int, epochs: int) -> None:
        """Not after the last epochs: the weights must still come to rest under the prior that
        stays.
        """
        if (epoch + 1) % self._every == 0 and epoch + 1 <= 0.9 * epochs:
            values = {n: v.detach().clone() for n, v in self.posterior.mean().items()}
            self._renew(values, self.buffers_.tensors())


@contextmanager
def held_fixed(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Parameters that no descent moves meanwhile."""
    moved = [parameter for parameter in parameters if parameter.requires_grad]
    for parameter in moved:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in moved:
            parameter.requires_grad_(True)


def gaussian_posterior(
    model: Model, values: Params, blocks: Sequence[Block], precision: Precision
) -> Posterior:
    """The Gaussian of every block, and points for what is not random."""
    random = {name: values[name] for name in model.random}
    return with_points(model, dict(values), [block.family(random, precision) for block in blocks])


def prior_seen(model: Model, values: Params, measured: Measured) -> Centred:
    """The prior of the weights that curvature was measured of; where an earlier posterior is joint,
    its covariances go into the blocks.
    """
    prior, blocks = model.prior, measured.blocks
    for family in prior.posterior.members if isinstance(prior, PosteriorPrior) else ():
        if isinstance(family, MeanField) or family.atoms == 1:
            continue
        block = next((b for b in blocks if set(b.names) == set(family.names)), None)
        if not (
            isinstance(family, Full)
            and isinstance(block, FullBlock)
            and tuple(family.names) == block.names
        ):
            raise SettingError(
                "laplace can add data to an earlier posterior over the same parameters; this one "
                f"is {family.name!r} over {', '.join(family.names)}."
            )
        return _with_full(family, block, values)
    return centred(model, values, places=measured.chosen)


def _with_full(family: Full, block: FullBlock, values: Params) -> Centred:
    """P0 = its diagonal, which the evidence counts by weight, and the rest, which is the
    block's.
    """
    inverse = torch.cholesky_inverse(family.scale_tril().detach().double())
    offset = (
        block.layout.join({n: values[n].double() for n in block.names})
        - family.flat_mean.detach().double()
    )
    diagonal = inverse.diagonal().clone()
    block.joint = inverse - torch.diag(diagonal)
    block.shift = float(
        0.5 * torch.linalg.slogdet(inverse).logabsdet - 0.5 * diagonal.log().sum()
    ) - float(0.5 * offset @ block.joint @ offset)
    return Centred(block.layout.split(diagonal), block.layout.split(offset))


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


def choose_by_validation(
    model: Model,
    source: Source,
    values: Params,
    buffers: Mapping[str, Tensor],
    measured: Measured,
    shortcut: str | None,
) -> None:
    """The factor on the prior's precision, one for all, whose predictions of held-out data are
    best.
    """
    prior = model.prior
    assert isinstance(prior, Scaled)
    best, found = math.inf, 0.0
    for scale in GRID[::2].tolist():
        prior.set({name: torch.as_tensor(scale) for group in prior.groups() for name in group})
        posterior = gaussian_posterior(
            model, values, measured.blocks, prior_seen(model, values, measured).precision
        )
        nll = _held_out(model, source, posterior, buffers, shortcut)
        if nll < best:
            best, found = nll, scale
    prior.set({name: torch.as_tensor(found) for group in prior.groups() for name in group})


def _held_out(
    model: Model,
    source: Source,
    posterior: Posterior,
    buffers: Mapping[str, Tensor],
    shortcut: str | None,
) -> float:
    total = 0.0
    for x, y in source(None, 1000):
        outputs: Any
        if shortcut is None:
            outputs, _ = sampled_outputs(model, Draws.of(posterior, POINTS, 0), x, buffers, 0)
        else:
            outputs = shortcut_named(shortcut).outputs(
                model, posterior, x, buffers, POINTS, batch_size=None
            )
        total -= float(
            Predictive(outputs, model.likelihood).log_prob(y.to(outputs.device)).double().sum()
        )
    return total
