"""Numerics of equal-weight mixtures over axis 0: entropies by quadrature and by draws, quantiles by bisection.

Grids are put on leading axes in front of the mixture axis, so that parameters with a sample axis ``(S, 1, 1)`` keep broadcasting.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor
from torch.distributions import Distribution

from credo.core.errors import SettingError
from credo.core.seeds import generator as seeded
from credo.likelihoods.quadrature import legendre

ELEMENTS = 2**22  # numbers held at once; larger problems are cut along the data axis
PANELS = 256
PANEL_NODES = 8
DRAWS = 512


class Component(Protocol):
    """What ``entropy_by_draws`` needs of a likelihood."""

    def sample(self, outputs: Tensor, generator: torch.Generator | int = 0) -> Tensor: ...

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor: ...

    def entropy(self, outputs: Tensor) -> Tensor: ...


def make_generator(like: Tensor, source: torch.Generator | int) -> torch.Generator:
    """The generator itself, or a new one on the tensor's device from this seed.

    The seed is mixed, so that noise in y is not the very numbers that drew the weights from the same seed.
    """
    return source if isinstance(source, torch.Generator) else seeded("likelihood", source, device=like.device)


def over_data(function: Callable[[Tensor], Tensor], outputs: Tensor, grid: int, data_axis: int) -> Tensor:
    """``function`` on slices of the data axis -2 of ``(S, ..., N, F)`` small enough for memory, joined along ``data_axis``.

    ``grid`` is how many numbers the function holds for each output.
    """
    per_datum = grid * max(1, outputs.numel() // max(1, outputs.shape[-2]))
    size = max(1, ELEMENTS // per_datum)
    if outputs.shape[-2] <= size:
        return function(outputs)
    return torch.cat([function(part) for part in outputs.split(size, -2)], data_axis)


@lru_cache(maxsize=1)
def _knots() -> Tensor:
    """Knots in standard deviations: 0.2 apart in the middle, then geometric out to 8000, where even heavy tails carry nothing."""
    half = 0.5 * torch.sinh(0.4 * torch.arange(1, 27, dtype=torch.float64))
    return torch.cat([-half.flip(0), torch.zeros(1, dtype=torch.float64), half])


def panel_entropy(marginals: Distribution, mean: Tensor, std: Tensor, lower: float, upper: float) -> Tensor:
    """-integral p log p of p = (1/S) sum_s p_s, per datum and dimension: ``(S, ..., N, D)`` marginals to ``(..., N, D)``.

    Gauss-Legendre on panels between knots at fixed multiples of each component's deviation, thinned to at most 256 panels, so
    the grid is dense where components are narrow. Misses components much narrower than the gap between the knots of all others.
    """
    steps = _knots().to(mean).reshape(-1, *(1,) * mean.dim())
    knots = (mean + std * steps).clamp(lower, upper).flatten(0, 1).sort(0).values
    if knots.shape[0] > PANELS + 1:
        keep = torch.linspace(0, knots.shape[0] - 1, PANELS + 1, device=mean.device).round().long()
        knots = knots[keep]
    nodes, weights = (t.to(mean).reshape(1, -1, *(1,) * (mean.dim() - 1)) for t in legendre(PANEL_NODES))
    left, width = knots[:-1].unsqueeze(1), knots.diff(dim=0).unsqueeze(1)
    points = left + width * nodes
    log_p = torch.logsumexp(marginals.log_prob(points.flatten(0, 1).unsqueeze(1)), 1) - math.log(mean.shape[0])
    return (torch.special.entr(log_p.exp()).unflatten(0, points.shape[:2]) * width * weights).sum((0, 1))


def panel_grid(num_samples: int) -> int:
    """Points at which ``panel_entropy`` evaluates each component."""
    return PANEL_NODES * min(PANELS, num_samples * _knots().shape[0])


def entropy_by_draws(likelihood: Component, outputs: Tensor, seed: int = 0) -> Tensor:
    """mean_s H_s + (1/S) sum_s E_s[log p_s(y) - log p(y)] with draws from every component in turn (stratified): ``(N,)``.

    Unbiased for the entropy of the mixture; the noise is that of the second term only, which lies between 0 and log S.
    """
    num_samples = outputs.shape[0]
    rounds = math.ceil(DRAWS / num_samples)
    generator = make_generator(outputs, seed)
    gap = torch.zeros((), dtype=outputs.dtype, device=outputs.device)
    for _ in range(rounds):
        y = likelihood.sample(outputs, generator)
        mixture = torch.logsumexp(likelihood.log_prob(outputs, y.unsqueeze(1)), 1) - math.log(num_samples)
        gap = gap + (likelihood.log_prob(outputs, y) - mixture).mean(0) / rounds
    return likelihood.entropy(outputs).mean(0) + gap


def bracket(mean: Tensor, variance: Tensor, q: float) -> tuple[Tensor, Tensor]:
    """An interval that holds the q-quantile of any law with these moments (Cantelli's inequality), widened for rounding."""
    if not 0.0 < q < 1.0:
        raise SettingError(f"q={q!r} is not a probability strictly between 0 and 1; quantiles exist only there.")
    std = variance.sqrt()
    slack = 1e-3 * std + 1e-6 * mean.abs() + torch.finfo(mean.dtype).tiny
    return mean - std * math.sqrt((1.0 - q) / q) - slack, mean + std * math.sqrt(q / (1.0 - q)) + slack


def bisect(cdf: Callable[[Tensor], Tensor], low: Tensor, high: Tensor, q: float) -> Tensor:
    """The y between low and high with cdf(y) = q, halved until the floating-point type has no more digits."""
    for _ in range(2 - math.frexp(torch.finfo(low.dtype).eps)[1] + 16):
        middle = (low + high) / 2.0
        below = cdf(middle) < q
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return (low + high) / 2.0
