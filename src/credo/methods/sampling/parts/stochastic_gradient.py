"""Slopes of log p(D, w) from batches, one batch of its own for every chain at every step.

U = -(N / B) sum log p(y given x, w) - log p(w), with step eta = lr / N: ``lr`` is then the learning
rate of descent on the mean loss.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import final

from torch import Tensor

from credo.core.seeds import generator
from credo.engine.batches import own_batches
from credo.engine.fit_job import FitJob
from credo.methods.sampling.parts.density import Batch, Density
from credo.methods.sampling.parts.fitted_alongside import FittedAlongside


@final
class ChainBatches:
    """Batch t of every chain, ``(C, B, ...)``: epochs in orders drawn from (seed, epoch, chain), so
    that any step can be reached again.
    """

    def __init__(self, density: Density, fit_job: FitJob, chains: int) -> None:
        self.model, self.fit_job, self.chains = density.model, fit_job, chains
        self.source = density.model.on_device(fit_job.source)
        self.count = self.source.num_batches(fit_job.batch_size)
        self._place, self._rows = -1, iter(())

    def at(self, index: int) -> Batch:
        """The batches of step ``index``; asking for the one after the last costs nothing extra."""
        if index != self._place + 1 or index % self.count == 0:
            epoch, skip = divmod(index, self.count)
            self._rows = islice(self._epoch(epoch), skip, None)
        self._place = index
        return next(self._rows)

    def _epoch(self, epoch: int) -> Iterator[Batch]:
        orders = [generator(self.fit_job.seed, "order", epoch, c) for c in range(self.chains)]
        for x, y in own_batches(self.source, orders, self.fit_job.batch_size):
            yield self.model.move(x), self.model.move(y)


@final
class StochasticGradient:
    """Unbiased estimates of log p(D, w) and its slope; the steps of what is fitted alongside come
    with them, on the same batches.
    """

    def __init__(
        self, density: Density, fit_job: FitJob, chains: int, fitted_alongside: FittedAlongside
    ) -> None:
        self.density, self.fitted_alongside = density, fitted_alongside
        self.num_data = fit_job.source.num_data
        self.batches = ChainBatches(density, fit_job, chains)

    def eta(self, lr: Tensor) -> float:
        """The step."""
        return float(lr) / self.num_data

    def at(self, position: Tensor, index: int) -> tuple[Tensor, Tensor]:
        """Log density ``(C,)`` and slope ``(C, P)`` of chains at ``position``, each on its batch of
        step ``index``.
        """
        batch = self.batches.at(index)
        factor = self.num_data / batch[1].shape[1]
        log_density, slope = self.density.slope(position, [batch], factor, own=True)
        self.fitted_alongside.step(
            index,
            lambda optimizer: self.density.fit_alongside(
                position, [batch], optimizer, factor, own=True
            ),
        )
        return log_density, slope
