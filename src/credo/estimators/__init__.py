"""Estimators: how randomness enters a forward pass."""

from credo.estimators.base import Estimator, estimators
from credo.estimators.flipout import Flipout
from credo.estimators.local import Local
from credo.estimators.placement import LIKELIHOOD, Plan, place
from credo.estimators.plan import make_plan, structure
from credo.estimators.weights import Weights

__all__ = ["LIKELIHOOD", "Estimator", "Flipout", "Local", "Plan", "Weights", "estimators", "make_plan", "place", "structure"]
