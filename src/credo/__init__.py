"""credo: Bayesian deep learning for PyTorch. Gives any network a posterior."""

from credo import (
    audit,
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
from credo.core.errors import CredoError, DataError, NetworkError, RunError, SettingError
from credo.evidence import compare
from credo.predictive import Predictive
from credo.version import __version__

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
