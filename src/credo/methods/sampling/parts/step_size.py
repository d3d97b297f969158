"""The step size of stochastic-gradient samplers where no lr is given: from the curvature of the
log density where the chains are, and from the noise of its batches.

With a the largest curvature of U = -log p(D, w), found by the power iteration on differences of
slopes, and V the variance of the batches' slope in its direction, a step eta = lr / N makes the
steepest direction too wide by a share of order eta a (``sgld``) and heats it by eta V / 2 for
``sgld``, eta V / (1 - (1 - friction)^2) with momentum. The step is the largest that keeps both
within the limits of the method; the heat counts once nothing is fitted alongside any more. It is
found anew up to twenty times until the warm-up ends, because curvature differs from place to place
and grows as learned noise falls; and held from then on.
"""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple, final

import torch
from torch import Tensor

from credo.core.seeds import generator
from credo.core.tree import map_tensors
from credo.engine.fit_job import FitJob
from credo.kernels.log_density import normal
from credo.methods.sampling.parts.density import Batch, Density
from credo.methods.sampling.parts.fitted_alongside import SHARE_OF_WARMUP

TIMES, EVERY = 20, 40  # a step is found so often, but not more than once in so many moves
ROUNDS = 8  # of the power iteration
ROWS = 1024  # examples whose curvature stands for that of all
BATCHES = 8  # whose slopes give the variance
HEAT = 0.1  # share of the temperature that batches may add in the steepest direction
NUDGE = 1e-3  # of the size of the weights, by which they are moved to see the slope change


class Step(NamedTuple):
    """What a search has found."""

    lr: Tensor  #: ()
    noise: Tensor  #: () heat that batches add in the steepest direction, as a share of T


@final
class StepSearch:
    """``lr`` by the problem: ``steepest`` is the largest eta a, ``heating`` the heat that a batch
    adds over eta V. A given lr stays as it is.
    """

    def __init__(
        self, density: Density, fit_job: FitJob, until: int, steepest: float, heating: float
    ) -> None:
        self.density, self.fit_job, self.until = density, fit_job, until
        self.steepest, self.heating = steepest, heating
        self.num_data = fit_job.source.num_data
        times = max(3, min(TIMES, until // EVERY))
        self.when = {until * part // times for part in range(times + 1)}

    def start(self, position: Tensor) -> Step:
        """Before the first move."""
        lr = torch.tensor(self.fit_job.lr, dtype=torch.float64, device=position.device)
        return Step(lr, torch.zeros_like(lr))

    def told(self, step: Step) -> Tensor | None:
        """The noise of batches, where it was measured."""
        searched = not self.fit_job.lr_given and self.fit_job.batch_size is not None
        return step.noise if searched else None

    def at(self, step: Step, index: int, position: Tensor, scale: Tensor | float = 1.0) -> Step:
        """That of move ``index`` of chains at ``position`` under the preconditioner ``scale``."""
        if self.fit_job.lr_given or index not in self.when:
            return step
        root = scale.sqrt() if isinstance(scale, Tensor) else 1.0
        few = min(ROWS, self.num_data, 2 * (self.fit_job.batch_size or ROWS))
        rows = self._batches(index, few, 1)[0]
        curvature, direction = self._steepest(index, position, root, rows)
        size = self.fit_job.batch_size
        variance = 0.0 if size is None else self._variance(index, position, root * direction, size)
        heating = self.heating * variance
        eta = self.steepest / max(curvature, 1e-12)
        if index >= SHARE_OF_WARMUP * self.until:  # before, chains are on their way
            eta = min(eta, HEAT / max(heating, 1e-30))
        like = step.lr
        return Step(
            torch.full_like(like, eta * self.num_data), torch.full_like(like, eta * heating)
        )

    def _batches(self, index: int, size: int, count: int) -> list[Batch]:
        """Examples of their own, so that those of the steps are not used up."""
        model, source = self.density.model, generator(self.fit_job.seed, "curvature", index)
        found = islice(self.density.model.on_device(self.fit_job.source)(source, size), count)
        return [map_tensors(lambda t: t.detach(), (model.move(x), model.move(y))) for x, y in found]

    def _slope(self, position: Tensor, batch: Batch) -> Tensor:
        return self.density.slope(position, [batch], self.num_data / len(batch[1]))[1].double()

    def _steepest(
        self, index: int, position: Tensor, root: Tensor | float, batch: Batch
    ) -> tuple[float, Tensor]:
        """The largest curvature over the chains, and every chain's direction of it ``(C, P)``."""
        here, source = (
            self._slope(position, batch),
            generator(self.fit_job.seed, "direction", index, device=position.device),
        )
        direction = normal(position, source).double()
        nudge = NUDGE * (1.0 + position.double().norm(dim=1, keepdim=True))
        size = torch.ones_like(nudge)
        for _ in range(ROUNDS):
            direction = direction / direction.norm(dim=1, keepdim=True).clamp_min(1e-30)
            moved = root * direction
            far = nudge / moved.norm(dim=1, keepdim=True).clamp_min(1e-30)
            there = self._slope((position + far * moved).to(position.dtype), batch)
            bent = root * (here - there) / far
            size, direction = bent.norm(dim=1, keepdim=True), bent
        direction = direction / size.clamp_min(1e-30)
        return float(size.nan_to_num(nan=0.0, posinf=0.0).max()), direction

    def _variance(self, index: int, position: Tensor, direction: Tensor, size: int) -> float:
        """Of a batch's slope along ``direction``, the mean over chains; from smaller batches where
        the data do not make as many of this size.
        """
        part = max(1, min(size, self.num_data // BATCHES))
        batches = self._batches(index, part, BATCHES)
        along = torch.stack([(self._slope(position, b) * direction).sum(1) for b in batches])
        share = part / size * (1 - size / self.num_data) / max(1 - part / self.num_data, 1e-12)
        return share * float(along.var(0).mean().nan_to_num())
