"""Metrics of predicted numbers, and of log densities."""

from __future__ import annotations

import torch
from torch import Tensor

from credo.core.errors import DataError
from credo.metrics.metric_checks import check_same


def nll(log_prob: Tensor) -> Tensor:
    """Mean negative log likelihood -(1/N) sum_n log p(y_n) in nats, from log densities ``(N,)``."""
    if log_prob.numel() == 0:
        raise DataError("Got no log densities; expected at least one.")
    return -log_prob.mean()


def rmse(mean: Tensor, y: Tensor) -> Tensor:
    """sqrt of the mean of (mean - y)^2 over all data and dimensions; equal shapes."""
    check_same(mean, y, "means and targets")
    return (mean - y).square().mean().sqrt()


def crps(samples: Tensor, y: Tensor) -> Tensor:
    """Continuous ranked probability score E|X - y| - 1/2 E|X - X'|, averaged, from samples ``(S, N,
    ...)`` for y ``(N, ...)``.

    The fair estimate: with sorted x_(i), E|X - X'| is 2/(S (S-1)) sum_i (2i - S - 1) x_(i),
    unbiased for the score of the law the samples come from, in O(S log S). Needs two samples; with
    few it is noisy and single values may be negative.
    """
    if samples.dim() < 1 or samples.shape[0] < 2:
        raise DataError(
            f"Got samples of shape {tuple(samples.shape)}; expected at least two along axis 0."
        )
    check_same(samples[0], y, "one sample and targets")
    size = samples.shape[0]
    # Differences from y keep digits when y is far from 0; the pair term does not change under
    # shifts.
    gap = samples - y
    rank = torch.arange(1, size + 1, dtype=gap.dtype, device=gap.device).reshape(
        -1, *(1,) * y.dim()
    )
    pairs = ((2.0 * rank - size - 1.0) * gap.sort(0).values).sum(0) / (size * (size - 1.0))
    return (gap.abs().mean(0) - pairs).mean()


def coverage(lower: Tensor, upper: Tensor, y: Tensor) -> Tensor:
    """The share of targets with lower <= y <= upper; equal shapes."""
    check_same(lower, y, "lower ends and targets")
    check_same(upper, y, "upper ends and targets")
    return ((lower <= y) & (y <= upper)).to(lower.dtype).mean()
