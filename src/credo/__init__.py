"""credo: Bayesian deep learning for PyTorch. Gives any network a posterior.

``import credo`` itself loads neither torch nor a model: every name is imported when it is first
used, so that the command line answers at once.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from credo.core.errors import CredoError, DataError, NetworkError, RunError, SettingError
from credo.version import __version__

if TYPE_CHECKING:
    from credo import (
        audit,
        compress,
        data,
        estimators,
        generative,
        likelihoods,
        methods,
        metrics,
        nets,
        posteriors,
        predictive,
        priors,
        tasks,
    )
    from credo.bnn import BNN, load
    from credo.evidence import compare
    from credo.predictive import Predictive

__all__ = [
    "BNN",
    "CredoError",
    "DataError",
    "NetworkError",
    "Predictive",
    "RunError",
    "SettingError",
    "__version__",
    "audit",
    "compare",
    "compress",
    "data",
    "estimators",
    "generative",
    "likelihoods",
    "load",
    "methods",
    "metrics",
    "nets",
    "posteriors",
    "predictive",
    "priors",
    "tasks",
]

#: Where the names above are defined that are not packages of their own.
_HOMES = {
    "BNN": "credo.bnn",
    "load": "credo.bnn",
    "compare": "credo.evidence",
    "Predictive": "credo.predictive",
}

if not TYPE_CHECKING:  # so that type checkers still refuse names that do not exist

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first used."""
        if name not in __all__:
            raise AttributeError(f"module 'credo' has no attribute {name!r}", name=name)
        if name not in _HOMES:
            return import_module(f"credo.{name}")
        value = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return value


def __dir__() -> list[str]:
    """The public names only."""
    return __all__
