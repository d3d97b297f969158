"""Deterministic moment propagation: activations carry a mean and a (co)variance through the
unchanged network.
"""

from credo.estimators.moments import (  # noqa: F401  (they register their rules)
    activations,
    arithmetic,
    linear,
    normalise,
    pooling,
    shapes,
)
from credo.estimators.moments.propagate import place_moments, propagate
from credo.estimators.moments.state import RULES, Moments, Rule, make_moments, rule, table

__all__ = [
    "RULES",
    "Moments",
    "Rule",
    "make_moments",
    "place_moments",
    "propagate",
    "rule",
    "table",
]
