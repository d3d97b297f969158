"""Metrics: pure functions of tensors, each a mean over the data."""

from credo.metrics import chain_diagnostics as chains
from credo.metrics import importance_weights as importance
from credo.metrics.chain_diagnostics import bfmi, ess_bulk, ess_tail, mcse_mean, mcse_sd, rhat
from credo.metrics.detection import aupr, auroc, tpr_at_fpr
from credo.metrics.label_metrics import Reliability, accuracy, adaptive_ece, brier, ece, reliability
from credo.metrics.rejection import RiskCoverage, risk_coverage
from credo.metrics.value_metrics import coverage, crps, nll, rmse

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
