"""Every method, one line each."""

from credo.engine.method import Method, make_method, methods
from credo.methods.bbvi import BBVI
from credo.methods.bnn_ensemble import BNNEnsemble
from credo.methods.exact import Exact
from credo.methods.flow import FlowVI
from credo.methods.ivon import IVON
from credo.methods.last_layer import LastLayer
from credo.methods.map import MAP
from credo.methods.mle import MLE
from credo.methods.moments import MomentPropagation
from credo.methods.vi import VI
from credo.methods.weight_noise import WeightNoise

__all__ = [
    "BBVI",
    "IVON",
    "MAP",
    "MLE",
    "VI",
    "BNNEnsemble",
    "Exact",
    "FlowVI",
    "LastLayer",
    "Method",
    "MomentPropagation",
    "WeightNoise",
    "make_method",
    "methods",
    "names",
]


def names() -> list[str]:
    """Names of all registered methods."""
    return methods.names()
