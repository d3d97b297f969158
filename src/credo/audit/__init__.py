"""Ground truth: a reference posterior of the user's own model, the distance of an approximation
from it, and whether chains have mixed.
"""

from credo.audit.arviz import to_arviz
from credo.audit.compare import compare
from credo.audit.diagnostics import (
    Convergence,
    Diagnosis,
    Mixing,
    converged,
    diagnose,
    function_draws,
)
from credo.audit.reference import reference, subsample, weights_only

__all__ = [
    "Convergence",
    "Diagnosis",
    "Mixing",
    "compare",
    "converged",
    "diagnose",
    "function_draws",
    "held",
    "reference",
    "subsample",
    "to_arviz",
    "weights_only",
]

held = weights_only  # the former name, which still works
