"""Metrics: pure functions of tensors, each a mean over the data."""

from credo.metrics.detection import aupr, auroc, tpr_at_fpr
from credo.metrics.labels import Reliability, accuracy, adaptive_ece, brier, ece, reliability
from credo.metrics.rejection import RiskCoverage, risk_coverage
from credo.metrics.values import coverage, crps, nll, rmse

__all__ = [
    "Reliability",
    "RiskCoverage",
    "accuracy",
    "adaptive_ece",
    "aupr",
    "auroc",
    "brier",
    "coverage",
    "crps",
    "ece",
    "nll",
    "reliability",
    "risk_coverage",
    "rmse",
    "tpr_at_fpr",
]
