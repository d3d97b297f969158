"""Every method, one line each."""

from credo.engine.method import Method, make_method, methods
from credo.methods.bbvi import BBVI
from credo.methods.bnn_ensemble import BNNEnsemble
from credo.methods.concrete_dropout import ConcreteDropoutMethod
from credo.methods.exact import Exact
from credo.methods.flow import FlowVI
from credo.methods.gaussian_dropout import GaussianDropoutMethod
from credo.methods.ivon import IVON
from credo.methods.last_layer import LastLayer
from credo.methods.map import MAP
from credo.methods.mc_batchnorm import MCBatchNorm
from credo.methods.mc_dropout import MCDropout
from credo.methods.mle import MLE
from credo.methods.moments import MomentPropagation
from credo.methods.stochastic import StochasticForward
from credo.methods.variational_dropout import VariationalDropout
from credo.methods.vi import VI
from credo.methods.weight_noise import WeightNoise

__all__ = [
    "BBVI",
    "IVON",
    "MAP",
    "MLE",
    "VI",
    "BNNEnsemble",
    "ConcreteDropoutMethod",
    "Exact",
    "FlowVI",
    "GaussianDropoutMethod",
    "LastLayer",
    "MCBatchNorm",
    "MCDropout",
    "Method",
    "MomentPropagation",
    "StochasticForward",
    "VariationalDropout",
    "WeightNoise",
    "make_method",
    "methods",
    "names",
]


def names() -> list[str]:
    """Names of all registered methods."""
    return methods.names()
