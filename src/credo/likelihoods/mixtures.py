"""Numerics of equal-weight mixtures over axis 0: entropies by quadrature and by draws, quantiles by
root finding.

Grids are put on leading axes in front of the mixture axis, so that parameters with a sample axis
``(S, 1, 1)`` keep broadcasting.
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
PANELS = 96
PANEL_NODES = 8
DRAWS = 512


class Component(Protocol):
    """What ``entropy_by_draws`` needs of a likelihood."""

    def sample(self, outputs: Tensor, generator: torch.Generator | int = 0) -> Tensor: ...

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor: ...

    def entropy(self, outputs: Tensor) -> Tensor: ...


def make_generator(like: Tensor, source: torch.Generator | int) -> torch.Generator:
    """The generator itself, or a new one on the tensor's device from this seed.

    The seed is mixed, so that noise in y is not the very numbers that drew the weights from the
    same seed.
    """
    return (
        source
        if isinstance(source, torch.Generator)
        else seeded("likelihood", source, device=like.device)
    )


def over_data(
    function: Callable[[Tensor], Tensor], outputs: Tensor, grid: int, data_axis: int
) -> Tensor:
    """``function`` on slices of the data axis -2 of ``(S, ..., N, F)`` small enough for memory,
    joined along ``data_axis``.

    ``grid`` is how many numbers the function holds for each output.
    """
    per_datum = grid * max(1, outputs.numel() // max(1, outputs.shape[-2]))
    size = max(1, ELEMENTS // per_datum)
    if outputs.shape[-2] <= size:
        return function(outputs)
    return torch.cat([function(part) for part in outputs.split(size, -2)], data_axis)


@lru_cache(maxsize=1)
def _knots() -> tuple[Tensor, Tensor]:
    """Knots in standard deviations, for each component out to 10 and for the mixture out to 8000,
    where even heavy tails end.

    They lie 0.2 apart in the middle and then geometrically.
    """
    half = 0.5 * torch.sinh(0.4 * torch.arange(1, 27, dtype=torch.float64))
    far = torch.cat([-half.flip(0), torch.zeros(1, dtype=torch.float64), half])
    return far[far.abs() < 10.0], far


def panel_entropy(
    marginals: Distribution, mean: Tensor, std: Tensor, lower: float, upper: float
) -> Tensor:
    """-integral p log p of p = (1/S) sum_s p_s, per datum and dimension: ``(S, ..., N, D)``
    marginals to ``(..., N, D)``.

    Gauss-Legendre on panels between knots at fixed multiples of each component's deviation, thinned
    to at most 96, and of the whole mixture's, so the grid is dense where components are narrow.
    Thinning may miss a few components that are much narrower than all others.
    """
    centre = mean.mean(0, keepdim=True)
    whole = (
        std.square().mean(0, keepdim=True) + (mean - centre).square().mean(0, keepdim=True)
    ).sqrt()
    near, far = (steps.to(mean).reshape(-1, *(1,) * mean.dim()) for steps in _knots())
    own = (mean + std * near).flatten(0, 1).sort(0).values
    if own.shape[0] > PANELS:
        own = own[torch.linspace(0, own.shape[0] - 1, PANELS, device=mean.device).round().long()]
    knots = (
        torch.cat([own, (centre + whole * far).flatten(0, 1)]).clamp(lower, upper).sort(0).values
    )
    nodes, weights = (
        t.to(mean).reshape(1, -1, *(1,) * (mean.dim() - 1)) for t in legendre(PANEL_NODES)
    )
    left, width = knots[:-1].unsqueeze(1), knots.diff(dim=0).unsqueeze(1)
    points = left + width * nodes
    log_p = torch.logsumexp(marginals.log_prob(points.flatten(0, 1).unsqueeze(1)), 1) - math.log(
        mean.shape[0]
    )
    return (torch.special.entr(log_p.exp()).unflatten(0, points.shape[:2]) * width * weights).sum(
        (0, 1)
    )


def panel_grid(num_samples: int) -> int:
    """Points at which ``panel_entropy`` evaluates each component."""
    near, far = _knots()
    return PANEL_NODES * (min(PANELS, num_samples * len(near)) + len(far))


def entropy_by_draws(likelihood: Component, outputs: Tensor, seed: int = 0) -> Tensor:
    """mean_s H_s + (1/S) sum_s E_s[log p_s(y) - log p(y)] with draws from every component in turn
    (stratified): ``(N,)``.

    Unbiased for the entropy of the mixture; the noise is that of the second term only, which lies
    between 0 and log S.
    """
    num_samples = outputs.shape[0]
    rounds = math.ceil(DRAWS / num_samples)
    generator = make_generator(outputs, seed)
    gap = torch.zeros((), dtype=outputs.dtype, device=outputs.device)
    for _ in range(rounds):
        y = likelihood.sample(outputs, generator)
        mixture = torch.logsumexp(likelihood.log_prob(outputs, y.unsqueeze(1)), 1) - math.log(
            num_samples
        )
        gap = gap + (likelihood.log_prob(outputs, y) - mixture).mean(0) / rounds
    return likelihood.entropy(outputs).mean(0) + gap


def bracket(mean: Tensor, variance: Tensor, q: float) -> tuple[Tensor, Tensor]:
    """An interval that holds the q-quantile of any law with these moments (Cantelli's inequality),
    widened for rounding.
    """
    if not 0.0 < q < 1.0:
        raise SettingError(
            f"q={q!r} is not a probability strictly between 0 and 1; quantiles exist only there."
        )
    std = variance.sqrt()
    slack = 1e-3 * std + 1e-6 * mean.abs() + torch.finfo(mean.dtype).tiny
    return mean - std * math.sqrt((1.0 - q) / q) - slack, mean + std * math.sqrt(
        q / (1.0 - q)
    ) + slack


def invert(cdf: Callable[[Tensor], Tensor], low: Tensor, high: Tensor, q: float) -> Tensor:
    """The y between low and high with cdf(y) = q, to the last digits of the floating-point type.

    The ITP method (Oliveira and Takahashi 2020): the secant point, pushed towards the middle so
    that both ends move, and never so far from it that more steps than one above plain bisection
    would be needed. About ten evaluations for a smooth cdf.
    """
    at_low, at_high = cdf(low) - q, cdf(high) - q
    width = high - low
    half_tolerance = (
        2.0 * torch.finfo(low.dtype).eps * torch.maximum(low.abs(), high.abs())
        + torch.finfo(low.dtype).tiny
    )
    steps = torch.log2(width / (2.0 * half_tolerance)).clamp_min(0.0).ceil() + 1.0
    push = 0.2 / width.clamp_min(torch.finfo(low.dtype).tiny)
    for step in range(int(steps.nan_to_num().max()) + 1):
        gap = high - low
        if bool((gap <= 2.0 * half_tolerance).all()):
            break
        middle = (low + high) / 2.0
        secant = torch.where(at_high > at_low, low - at_low * gap / (at_high - at_low), middle)
        towards = torch.sign(middle - secant)
        shift = torch.maximum(
            push * gap.square(), half_tolerance
        )  # at least a step that takes the root to its other side
        pushed = torch.where(shift <= (middle - secant).abs(), secant + towards * shift, middle)
        max_shift = (half_tolerance * torch.exp2(steps - step) - gap / 2.0).clamp_min(0.0)
        guess = torch.where(
            (pushed - middle).abs() <= max_shift, pushed, middle - towards * max_shift
        )
        value = cdf(guess) - q
        below = value < 0
        low, at_low = torch.where(below, guess, low), torch.where(below, value, at_low)
        high, at_high = torch.where(below, high, guess), torch.where(below, at_high, value)
    return (low + high) / 2.0
