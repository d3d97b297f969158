"""Metrics of predicted labels: probabilities ``(N, C)`` that sum to one against labels ``(N,)``."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from credo.metrics.metric_checks import check_count, check_probs


@dataclass(frozen=True, eq=False)
class Reliability:
    """Per bin, ``(B,)`` each: mean confidence, accuracy and number of data; empty bins have
    confidence and accuracy 0.
    """

    confidence: Tensor
    accuracy: Tensor
    count: Tensor


def accuracy(probs: Tensor, y: Tensor) -> Tensor:
    """The share of data whose most probable label is right."""
    check_probs(probs, y)
    return (probs.argmax(-1) == y).to(probs.dtype).mean()


def brier(probs: Tensor, y: Tensor) -> Tensor:
    """The mean of sum_c (p_c - 1[y = c])^2, between 0 and 2; for two classes twice the one-column
    form.
    """
    check_probs(probs, y)
    return (probs - one_hot(y, probs.shape[-1])).square().sum(-1).mean()


def reliability(probs: Tensor, y: Tensor, bins: int = 15) -> Reliability:
    """Confidence against accuracy in equal-width bins ((b-1)/B, b/B] of the largest probability."""
    confidence, correct = _confidence(probs, y, bins)
    index = (confidence * bins).ceil().long().clamp(1, bins) - 1
    return _bin(confidence, correct, index, bins)


def ece(probs: Tensor, y: Tensor, bins: int = 15) -> Tensor:
    """Expected calibration error: sum_b (n_b / N) |accuracy_b - confidence_b| over equal-width
    bins.

    Biased upwards by roughly sqrt(bins / N) for a calibrated model; compare only at equal N and
    bins.
    """
    return _gap(reliability(probs, y, bins))


def adaptive_ece(probs: Tensor, y: Tensor, bins: int = 15) -> Tensor:
    """``ece`` over bins of equal count (up to one), by rank of confidence; never more bins than
    data.
    """
    confidence, correct = _confidence(probs, y, bins)
    bins = min(bins, len(y))
    rank = torch.empty_like(y)
    rank[confidence.argsort(stable=True)] = torch.arange(len(y), device=y.device)
    return _gap(_bin(confidence, correct, rank * bins // len(y), bins))


def _confidence(probs: Tensor, y: Tensor, bins: int) -> tuple[Tensor, Tensor]:
    check_probs(probs, y)
    check_count("bins", bins)
    confidence, label = probs.max(-1)
    return confidence, (label == y).to(probs.dtype)


def _bin(confidence: Tensor, correct: Tensor, index: Tensor, bins: int) -> Reliability:
    zeros = torch.zeros(bins, dtype=confidence.dtype, device=confidence.device)
    count = zeros.index_add(0, index, torch.ones_like(confidence))
    filled = count.clamp_min(1.0)
    return Reliability(
        zeros.index_add(0, index, confidence) / filled,
        zeros.index_add(0, index, correct) / filled,
        count,
    )


def _gap(table: Reliability) -> Tensor:
    return (table.count * (table.accuracy - table.confidence).abs()).sum() / table.count.sum()
