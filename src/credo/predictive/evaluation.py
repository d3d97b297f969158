"""Metrics of a prediction against the truth; the likelihood says which family of them applies."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from credo import metrics
from credo.predictive.predictive import Predictive

CRPS_SAMPLES = 1000
CRPS_ROWS = 512  # data whose samples are held at once


def evaluate(predictive: Predictive, y: Tensor) -> dict[str, float]:
    """Metrics of N predictions against their targets.

    Labels: nll, accuracy, ece, brier, and mean entropy, aleatoric and epistemic (nats). Values:
    nll, rmse, crps (1000 draws, fixed seed), coverage_90 of the central 90 % interval, and the mean
    std.
    """
    targets = predictive.likelihood.check_pair(predictive.outputs, y)
    with torch.no_grad():
        scores = {"nll": metrics.nll(predictive.log_prob(targets))}
        scores |= FAMILIES[predictive.likelihood.metric_family](predictive, targets)
    return {name: float(value) for name, value in scores.items()}


def _labels(predictive: Predictive, y: Tensor) -> dict[str, Tensor]:
    probs, labels = predictive.likelihood.label_table(predictive.mean, y)
    return {
        "accuracy": metrics.accuracy(probs, labels),
        "ece": metrics.ece(probs, labels),
        "brier": metrics.brier(probs, labels),
        "entropy": predictive.entropy.mean(),
        "aleatoric": predictive.aleatoric.mean(),
        "epistemic": predictive.epistemic.mean(),
    }


def _values(predictive: Predictive, y: Tensor) -> dict[str, Tensor]:
    columns = y.reshape(len(y), -1).to(predictive.mean.dtype)
    lower, upper = predictive.interval(0.9)
    return {
        "rmse": metrics.rmse(predictive.mean, columns),
        "crps": _crps(predictive, y.to(predictive.mean.dtype)),
        "coverage_90": metrics.coverage(lower, upper, columns),
        "std": predictive.std.mean(),
    }


def _crps(predictive: Predictive, y: Tensor) -> Tensor:
    """Mean CRPS, in slices of the data so that the samples of a large set fit in memory."""
    total = torch.zeros((), dtype=y.dtype, device=y.device)
    for start in range(0, len(y), CRPS_ROWS):
        rows = slice(start, start + CRPS_ROWS)
        part = predictive[rows]
        total = total + metrics.crps(part.sample(CRPS_SAMPLES, seed=start), y[rows]) * len(part)
    return total / len(y)


FAMILIES: dict[str, Callable[[Predictive, Tensor], dict[str, Tensor]]] = {
    "labels": _labels,
    "values": _values,
}
