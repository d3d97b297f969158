"""Parallel tempering: neighbours on a ladder of temperatures swap places, so that hot chains carry
cold ones over barriers.

Rung k samples p(w) p(D given w)^b_k. A swap of neighbours is accepted with min(1, exp((b_k - b_k+1)
(l_k+1 - l_k))), l the log-likelihoods; even and odd pairs take turns, which carries positions up
and down the ladder in one sweep each (Okabe et al. 2001; Syed et al. 2022).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from credo.kernels.log_density import accepted, rate_of
from credo.kernels.warmup import Adaptation, WarmUp

JITTER = 0.2  # of the step size


class Ladder(NamedTuple):
    """The temperatures of K rungs, and how readily neighbours swap."""

    powers: Tensor  #: (K,) powers b_k of the likelihood
    rejected: Tensor  #: (2, K - 1): sums of rejection rates since the last respacing, their counts
    swapped: Tensor  #: (K - 1,): acceptance rate of each pair's last turn, NaN before the first

    @classmethod
    def start(cls, count: int, hottest: float, like: Tensor) -> Ladder:
        """Before the first swap; tensors on the device of ``like``."""
        powers = geometric(count, hottest, like)
        rejected = torch.zeros(2, max(count - 1, 1), dtype=torch.float64, device=like.device)
        return cls(powers, rejected, torch.full_like(powers[1:], torch.nan))

    def observe(self, rates: Tensor) -> Ladder:
        """Take in the acceptance rates ``(K - 1, C)`` of one round of swaps, for the next
        respacing.
        """
        if not len(rates):
            return self
        tried = ~rates.isnan().any(-1)
        missed = torch.where(tried, 1 - rates.mean(-1), 0.0)
        return self._replace(rejected=self.rejected + torch.stack([missed, tried.double()]))

    def respaced(self) -> Ladder:
        """With powers by the rejections since the last respacing, which start anew."""
        sums, counts = self.rejected
        powers = respace(self.powers, sums / counts.clamp_min(1))
        return self._replace(powers=powers, rejected=torch.zeros_like(self.rejected))

    def with_rates(self, rates: Tensor) -> Ladder:
        """With the acceptance rates ``(K - 1, C)`` of one round of swaps; pairs take turns, and one
        that was not tried has its last rate still.
        """
        mean = rates.mean(-1)
        return self._replace(swapped=torch.where(mean.isnan(), self.swapped, mean))


def geometric(count: int, hottest: float, like: Tensor) -> Tensor:
    """Powers ``(K,)`` from 1 down to ``hottest``, evenly spaced in their logarithm."""
    if count == 1:
        return torch.ones(1, dtype=torch.float64, device=like.device)
    return torch.logspace(
        0.0,
        torch.tensor(hottest, dtype=torch.float64).log10().item(),
        count,
        dtype=torch.float64,
        device=like.device,
    )


def swap(
    powers: Tensor, log_likelihoods: Tensor, turn: int, source: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Where every rung's next position comes from ``(K, C)``, and the acceptance rates of the pairs
    ``(K - 1, C)`` whose turn it is, else NaN.

    ``log_likelihoods``: of the chains of every rung ``(K, C)``; ``turn``: even pairs and odd ones
    alternate.
    """
    values = log_likelihoods
    origin = torch.arange(len(powers), device=values.device).unsqueeze(1).expand_as(values).clone()
    rates = torch.full_like(values[:-1], torch.nan)
    for low in range(turn % 2, len(powers) - 1, 2):
        rate = rate_of((powers[low] - powers[low + 1]) * (values[low + 1] - values[low]))
        take = accepted(rate, source)
        origin[low], origin[low + 1] = (
            torch.where(take, low + 1, low),
            torch.where(take, low, low + 1),
        )
        rates[low] = rate
    return origin, rates


def respace(powers: Tensor, rejection: Tensor) -> Tensor:
    """Powers between the same ends at which every pair would be rejected equally often, from the
    rejection rates ``(K - 1,)`` of these.

    Rejections add up along the ladder to a barrier that does not depend on its rungs; the new ones
    are evenly spaced in it.
    """
    height = torch.cat([torch.zeros_like(powers[:1]), rejection.clamp_min(1e-3).cumsum(0)])
    wanted = (
        torch.linspace(0.0, 1.0, len(powers), dtype=powers.dtype, device=powers.device) * height[-1]
    )
    place = torch.searchsorted(height, wanted, right=True).clamp(1, len(powers) - 1)
    low, high = height[place - 1], height[place]
    share = ((wanted - low) / (high - low)).clamp(0.0, 1.0)
    out = powers[place - 1] + share * (powers[place] - powers[place - 1])
    out[0], out[-1] = powers[0], powers[-1]
    return out


def step_per_chain(step: Tensor, chains: int, like: Tensor, source: torch.Generator) -> Tensor:
    """The rungs' step sizes ``(K,)`` for the chains of every rung ``(K C, 1)``, rung after rung,
    each jittered by up to a fifth; in the type of ``like``.
    """
    noise = torch.rand(
        len(step) * chains, 1, generator=source, dtype=torch.float64, device=step.device
    )
    steps = step.repeat_interleave(chains).unsqueeze(1) * (1 + JITTER * (2 * noise - 1))
    return steps.to(like.dtype)


def adapt_rungs(
    warmup: WarmUp, adaptation: Adaptation, index: int, position: Tensor, rate: Tensor
) -> Adaptation:
    """Take in a move: every rung's step size by its acceptance rates ``(K, C)``, the metric of all
    by the positions ``(C, P)`` of the posterior's rung.
    """
    before = adaptation.scale
    adaptation = warmup.adapt(adaptation, index, position, rate)
    if not warmup.new_metric_after(index):
        return adaptation
    # steps have the same length in space under the new metric
    change = (_mean_std(before) / _mean_std(adaptation.scale)).double()
    return warmup.restart(adaptation, adaptation.step_size.log_step_mean.exp() * change)


def _mean_std(scale: Tensor) -> Tensor:
    """The geometric mean of the standard deviations ``()`` of a metric's scale."""
    return (scale if scale.dim() == 1 else scale.diagonal()).log().mean().exp()
