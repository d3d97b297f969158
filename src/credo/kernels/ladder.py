"""Parallel tempering: neighbours on a ladder of temperatures swap places, so that hot chains carry
cold ones over barriers.

Rung k samples p(w) p(D given w)^b_k. A swap of neighbours is accepted with min(1, exp((b_k - b_k+1)
(l_k+1 - l_k))), l the log-likelihoods; even and odd pairs take turns, which carries positions up
and down the ladder in one sweep each (Okabe et al. 2001; Syed et al. 2022).
"""

from __future__ import annotations

import torch
from torch import Tensor

from credo.kernels.acceptance import accepted, rate_of


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


def swap(powers: Tensor, fits: Tensor, turn: int, source: torch.Generator) -> tuple[Tensor, Tensor]:
    """Where every rung's next position comes from ``(K, C)``, and the acceptance rates of the pairs
    ``(K - 1, C)`` whose turn it is, else NaN.

    ``fits`` ``(K, C)``: log-likelihoods; ``turn``: even pairs and odd ones alternate.
    """
    origin = torch.arange(len(powers), device=fits.device).unsqueeze(1).expand_as(fits).clone()
    rates = torch.full_like(fits[:-1], torch.nan)
    for low in range(turn % 2, len(powers) - 1, 2):
        rate = rate_of((powers[low] - powers[low + 1]) * (fits[low + 1] - fits[low]))
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
