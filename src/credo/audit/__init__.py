"""Ground truth: a reference posterior of the user's own model, how far an approximation is from it,
and whether chains have mixed.
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
from credo.audit.reference import held, reference, subsample

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
]
