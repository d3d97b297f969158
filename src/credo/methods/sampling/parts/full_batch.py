"""The target of samplers that take all data at every move."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from credo.data.source import Source
from credo.kernels.log_density import Point, Target
from credo.methods.sampling.parts.density import Batch, Density, Evaluated, Factor
from credo.methods.sampling.parts.fitted_alongside import FittedAlongside


@final
class FullBatch:
    """log p(D, w) and its slope, summed over ``batches`` that fit in memory one at a time; the data
    count ``weight`` times.
    """

    def __init__(self, density: Density, batches: Sequence[Batch], weight: float = 1.0) -> None:
        self.density, self.batches, self.weight = density, batches, weight

    @classmethod
    def of(cls, density: Density, source: Source, batch_size: int | None) -> FullBatch:
        """All of the source, on the model's device; where ``num_data`` says that it stands for
        more, its terms count for as many.
        """
        model = density.model
        batches = [
            (model.move(x), model.move(y)) for x, y in model.on_device(source)(None, batch_size)
        ]
        return cls(density, batches, source.num_data / sum(len(y) for _, y in batches))

    def __call__(self, flat: Tensor) -> Evaluated:
        """log p(D, w) ``(C,)`` and its slope ``(C, P)``."""
        return self._sum(flat, self.weight)

    def tempered(self, power: Tensor) -> Target:
        """log p(w) + power * log p(D given w), with a power ``(C,)`` for every chain; it may be
        changed in place.
        """
        return lambda flat: self._sum(flat, self.weight * power)

    def _sum(self, flat: Tensor, factor: Factor) -> Evaluated:
        value, slope = self.density.slope(flat, self.batches[:1], factor)
        for batch in self.batches[1:]:
            more, steeper = self.density.slope(flat, [batch], factor, prior=False)
            value, slope = value + more, slope + steeper
        return value, slope

    @torch.no_grad()
    def parts(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """log p(w) and log p(D given w), both ``(C,)``."""
        terms = [self.density.log_likelihood(flat, batch) for batch in self.batches]
        return self.density.log_prior(flat), self.weight * torch.stack(terms).sum(0)

    def log_density(self, flat: Tensor) -> Tensor:
        """log p(D, w) ``(C,)``, without its slope."""
        log_prior, log_likelihood = self.parts(flat)
        return log_prior + log_likelihood

    def step_alongside(self, alongside: FittedAlongside, index: int, flat: Tensor) -> bool:
        """The step that comes with move ``index`` of chains at ``flat``; True if it was taken, and
        the target is another one now.
        """
        return alongside.step(
            index,
            lambda optimizer: self.density.fit_alongside(
                flat, self.batches, optimizer, self.weight
            ),
        )


@final
class Tempered:
    """log p(w) + b_k log p(D given w) over K rungs of C chains each, rung after rung.

    The powers b_k change in place, because a compiled trajectory reads them where they were.
    """

    def __init__(self, target: FullBatch, num_rungs: int, num_chains: int) -> None:
        device = target.density.model.device
        self.num_chains = num_chains
        self._powers = torch.ones(num_rungs * num_chains, dtype=torch.float64, device=device)
        self._target = target.tempered(self._powers)

    def __call__(self, flat: Tensor) -> Evaluated:
        """The log density ``(K C,)`` and its slope ``(K C, P)``."""
        return self._target(flat)

    def set_powers(self, powers: Tensor) -> None:
        """``powers`` ``(K,)`` from here on."""
        self._powers.copy_(powers.repeat_interleave(self.num_chains))

    def at(self, powers: Tensor, position: Tensor) -> Point:
        """Chains at ``position`` ``(K C, P)`` under these powers."""
        self.set_powers(powers)
        return Point.at(self, position)
