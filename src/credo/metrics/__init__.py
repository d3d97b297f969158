"""Metrics: pure functions of tensors, each a mean over the data."""

from credo.metrics import chains, importance
from credo.metrics.chains import bfmi, ess_bulk, ess_tail, mcse_mean, mcse_sd, rhat
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
    "bfmi",
    "brier",
    "chains",
    "coverage",
    "crps",
    "ece",
    "ess_bulk",
    "ess_tail",
    "importance",
    "mcse_mean",
    "mcse_sd",
    "nll",
    "reliability",
    "rhat",
    "risk_coverage",
    "rmse",
    "tpr_at_fpr",
]
