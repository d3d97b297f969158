"""What stochastic-gradient samplers share: a batch of its own for every chain at every step, and
fitting what is not sampled.

U = -(N / B) sum log p(y given x, w) - log p(w), with step eta = lr / N: ``lr`` is then the learning
rate of descent on the mean loss.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar, Generic, TypeVar, final

import torch
from torch import Tensor

from credo.core.seeds import generator
from credo.core.settings import setting
from credo.engine.batches import on_device, own_batches
from credo.engine.fit_job import FitJob
from credo.kernels.target import State
from credo.methods.sampling.parts.chains import Sampler
from credo.methods.sampling.parts.density import Batch, Density
from credo.methods.sampling.parts.fitted_alongside import LEARNING, Fitting, Free

S = TypeVar("S", bound="StochasticSampler")


@final
class Feed:
    """Batch t of every chain, ``(C, B, ...)``: epochs in orders drawn from (seed, epoch, chain), so
    that any step can be reached again.
    """

    def __init__(self, density: Density, fit_job: FitJob, chains: int) -> None:
        self.model, self.fit_job, self.chains = density.model, fit_job, chains
        self.source = on_device(fit_job.source, density.model)
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


class Drift(Fitting, Generic[S]):
    """Moves on stochastic gradients; a subclass says how (``go``)."""

    def __init__(self, density: Density, fit_job: FitJob, sampler: S) -> None:
        self.sampler, self.density, self.num_data = sampler, density, fit_job.source.num_data
        self.eta = fit_job.lr / self.num_data
        self.feed = Feed(density, fit_job, sampler.num_chains)
        self.free = Free(density, sampler.point_lr, sampler.learning())

    def start(self, position: Tensor, source: torch.Generator) -> State:
        """Positions; a subclass adds what it needs."""
        return {"position": position}

    def move(self, state: State, index: int, source: torch.Generator) -> tuple[State, State]:
        """One step of every chain on its batch."""
        batch = self.feed.at(index)
        factor = self.num_data / batch[1].shape[1]
        position = state["position"]
        value, slope = self.density.slope(position, [batch], factor, own=True)
        moved, info = self.go(state, slope, index, source)
        if self.free.learns(index):
            self.free.learn(
                lambda optimizer: self.density.learn(position, [batch], optimizer, factor, own=True)
            )
        return moved, {"log_density": value} | info

    @abstractmethod
    def go(
        self, state: State, slope: Tensor, index: int, source: torch.Generator
    ) -> tuple[State, State]:
        """One step along ``slope``, the unbiased estimate of that of log p(D, w)."""


@dataclass(frozen=True)
class StochasticSampler(Sampler):
    """A move is one step on a batch."""

    batch_size: ClassVar[int | None] = 128
    lr: ClassVar[float] = 1e-2

    num_warmup: int = setting(2000, "Steps of every chain before the first draw.", ge=0)
    num_draws: int = setting(100, "Draws kept of every chain.", ge=1)
    thin: int = setting(50, "Steps per draw.", ge=1)
    temperature: float = setting(
        1.0, "T: samples p(w given D)^(1/T); 1 is the posterior, 0 descends.", ge=0.0
    )
    point_lr: float = setting(
        1e-2,
        "Adam's learning rate for point parameters and learned noise, during the warm-up.",
        gt=0.0,
    )

    def learning(self) -> int:
        """Steps during which what is not sampled learns."""
        return int(LEARNING * self.num_warmup)
