"""Predictions with their uncertainty, and their metrics."""

from credo.predictive.evaluation import evaluate
from credo.predictive.predictive import Predictive, Uncertainty, decompose, mutual_information

__all__ = ["Predictive", "Uncertainty", "decompose", "evaluate", "mutual_information"]
