"""Laplace's approximation of the marginal likelihood, and the width of the prior that maximises it.

log p(D) = log p(D given w) + log p(w) + P/2 log 2 pi - 1/2 log det(H + D), at the maximum w of the
joint density, D the prior's precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from credo.core.errors import CredoError
from credo.curvature.blocks import Block, Precision
from credo.curvature.prior_at_mode import PriorAtMode
from credo.likelihoods.fisher_information import NormalNoiseTerms

GRID = torch.linspace(
    -12.0, 12.0, 49, dtype=torch.float64
)  # logarithms of factors on the prior's precision that are tried first
STEPS = 60  # of quasi-Newton then


def log_evidence(
    blocks: Sequence[Block],
    nll: float,
    prior: PriorAtMode,
    log_factors: Mapping[str, Tensor] | None = None,
    noise: NormalNoiseTerms | None = None,
    noise_log_factor: Tensor | None = None,
) -> Tensor:
    """In nats, for the prior's precision times exp(log_factors) by parameter; differentiable in
    ``log_factors``.

    With ``noise`` also for a noise variance over exp(noise_log_factor) = c, which multiplies the
    curvature: log det(c H + D) = log det(H + D / c) + P log c.
    """
    precision = dict(prior.precision)
    if log_factors is not None:
        precision = _times(precision, log_factors)
    total = torch.as_tensor(prior.shift - nll, dtype=torch.float64)
    precision_over_noise = precision
    if noise is not None and noise_log_factor is not None:
        total = (
            total
            + 0.5 * noise.count * noise_log_factor
            - 0.5 * noise.misfit * torch.expm1(noise_log_factor)
        )
        precision_over_noise = _times(precision, dict.fromkeys(precision, -noise_log_factor))
    for block in blocks:
        total = total - 0.5 * block.log_det(precision_over_noise) + block.prior_shift
        for name in block.names:
            p, w = precision[name], prior.offset[name].double()
            total = total + 0.5 * (p.log().expand(w.shape) - p * w.square()).sum()
            if noise is not None and noise_log_factor is not None:
                total = total - 0.5 * w.numel() * noise_log_factor
    return total


def _times(precision: Precision, logs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The precision times exp(logs).

    Equal numbers times the same factor become one tensor: by that a block knows that they move
    together.
    """
    made: dict[Any, Tensor] = {}
    out = {}
    for name, p in precision.items():
        own = p.dim() or p.requires_grad
        key = (id(p) if own else 0, 0.0 if own else float(p), id(logs[name]))
        if key not in made:
            made[key] = p * logs[name].exp()
        out[name] = made[key]
    return out


def _by_parameter(values: Tensor, sharing: Sequence[Sequence[str]]) -> dict[str, Tensor]:
    """One number for all parameters that share it, by parameter: the same tensor for each."""
    return {
        name: value for value, group in zip(values.unbind(), sharing, strict=True) for name in group
    }


class PriorAndNoise(NamedTuple):
    """Logarithms of the factors on the prior's precision by parameter, and on one over the noise
    variance.
    """

    log_factors: dict[str, Tensor]
    noise_log_factor: float


def best_prior_and_noise(
    blocks: Sequence[Block],
    nll: float,
    prior: PriorAtMode,
    sharing: Sequence[Sequence[str]],
    noise: NormalNoiseTerms,
) -> PriorAndNoise:
    """The prior's width in every group and the noise that together maximise the evidence."""
    start = best_log_factors(blocks, nll, prior, sharing)
    point = torch.stack(
        [*(start[group[0]] for group in sharing), torch.zeros_like(start[sharing[0][0]])]
    )

    def value(values: Tensor) -> Tensor:
        return -log_evidence(
            blocks, nll, prior, _by_parameter(values[:-1], sharing), noise, values[-1]
        )

    found = _minimise(value, point)
    edge = 2 * float(GRID[-1])
    return PriorAndNoise(_by_parameter(found[:-1].clamp(-edge, edge), sharing), float(found[-1]))


def best_log_factors(
    blocks: Sequence[Block], nll: float, prior: PriorAtMode, sharing: Sequence[Sequence[str]]
) -> dict[str, Tensor]:
    """Logarithms of the factors on the prior's precision, one for every group of parameters, that
    maximise the evidence.

    All factors together along a grid first, so that the search starts at the right size; then
    quasi-Newton over all of them.
    """
    device = next(iter(prior.offset.values())).device

    def value(values: Tensor) -> Tensor:
        return -log_evidence(blocks, nll, prior, _by_parameter(values, sharing))

    def attempt(values: Tensor) -> float:
        try:
            return float(value(values))
        except CredoError:  # so wide that no prior is left beside the curvature's rounding
            return math.inf

    with torch.no_grad():
        ones = torch.ones(len(sharing), dtype=torch.float64, device=device)
        tried = [attempt(ones * float(g)) for g in GRID]
    start = ones * float(GRID[min(range(len(tried)), key=tried.__getitem__)])
    found = _minimise(value, start).clamp(2 * float(GRID[0]), 2 * float(GRID[-1]))
    return _by_parameter(found, sharing)


def _minimise(value: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """By torch's LBFGS with a line search, in double precision."""
    point = start.clone().requires_grad_()
    mover = torch.optim.LBFGS(
        [point], lr=1.0, max_iter=STEPS, tolerance_grad=1e-8, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        mover.zero_grad()
        loss = value(point)
        loss.backward()
        return loss

    with torch.enable_grad():
        mover.step(closure)
    return point.detach()
