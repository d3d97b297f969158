"""Estimators: how randomness enters a forward pass."""

from credo.estimators.base import (
    Estimator,
    Pass,
    estimators,
    pathwise_estimators,
    weight_estimators,
)
from credo.estimators.deterministic import Deterministic
from credo.estimators.flipout import Flipout
from credo.estimators.gates import Arm, Reinforce
from credo.estimators.local import Local
from credo.estimators.per_example import PerExample
from credo.estimators.placement import LIKELIHOOD, Plan, place
from credo.estimators.plan import make_plan
from credo.estimators.score import Score
from credo.estimators.straight_through import Gumbel, StraightThrough
from credo.estimators.weights import Weights

__all__ = [
    "LIKELIHOOD",
    "Arm",
    "Deterministic",
    "Estimator",
    "Flipout",
    "Gumbel",
    "Local",
    "Pass",
    "PerExample",
    "Plan",
    "Reinforce",
    "Score",
    "StraightThrough",
    "Weights",
    "estimators",
    "make_plan",
    "pathwise_estimators",
    "place",
    "weight_estimators",
]
