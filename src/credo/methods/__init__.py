"""Every method, one line each."""

from credo.engine.method import Method, make_method, methods
from credo.methods.annealing import Annealing
from credo.methods.bbvi import BBVI
from credo.methods.bnn_ensemble import BNNEnsemble
from credo.methods.concrete_dropout import ConcreteDropoutMethod
from credo.methods.csgmcmc import CSGMCMC
from credo.methods.deep_ensemble import DeepEnsemble
from credo.methods.deep_gp import DeepGPMethod
from credo.methods.dkl import DKL
from credo.methods.exact import Exact
from credo.methods.flow import FlowVI
from credo.methods.fvi import FVI
from credo.methods.gaussian_dropout import GaussianDropoutMethod
from credo.methods.group_horseshoe import GroupHorseshoe
from credo.methods.group_normal_jeffreys import GroupNormalJeffreys
from credo.methods.hmc import HMC
from credo.methods.horseshoe import Horseshoe
from credo.methods.importance import Importance
from credo.methods.ivon import IVON
from credo.methods.laplace import Laplace
from credo.methods.last_layer import LastLayer
from credo.methods.map import MAP
from credo.methods.mc_batchnorm import MCBatchNorm
from credo.methods.mc_dropout import MCDropout
from credo.methods.metropolis import Metropolis
from credo.methods.mle import MLE
from credo.methods.moments import MomentPropagation
from credo.methods.multiswag import MultiSWAG
from credo.methods.nngp import NNGP
from credo.methods.nuts import NUTS
from credo.methods.psgld import PSGLD
from credo.methods.sghmc import SGHMC
from credo.methods.sgld import SGLD
from credo.methods.snapshot import Snapshot
from credo.methods.soft_weight_sharing import SoftWeightSharing
from credo.methods.sparse_vd import SparseVDMethod
from credo.methods.stochastic import StochasticForward
from credo.methods.structured_bp import StructuredBP
from credo.methods.svgd import SVGD
from credo.methods.swag import SWAG
from credo.methods.tempering import Tempering
from credo.methods.variance_net import VarianceNet
from credo.methods.variational_dropout import VariationalDropout
from credo.methods.vi import VI
from credo.methods.vib import VIB
from credo.methods.weight_noise import WeightNoise

__all__ = [
    "BBVI",
    "CSGMCMC",
    "DKL",
    "FVI",
    "HMC",
    "IVON",
    "MAP",
    "MLE",
    "NNGP",
    "NUTS",
    "PSGLD",
    "SGHMC",
    "SGLD",
    "SVGD",
    "SWAG",
    "VI",
    "VIB",
    "Annealing",
    "BNNEnsemble",
    "ConcreteDropoutMethod",
    "DeepEnsemble",
    "DeepGPMethod",
    "Exact",
    "FlowVI",
    "GaussianDropoutMethod",
    "GroupHorseshoe",
    "GroupNormalJeffreys",
    "Horseshoe",
    "Importance",
    "Laplace",
    "LastLayer",
    "MCBatchNorm",
    "MCDropout",
    "Method",
    "Metropolis",
    "MomentPropagation",
    "MultiSWAG",
    "Snapshot",
    "SoftWeightSharing",
    "SparseVDMethod",
    "StochasticForward",
    "StructuredBP",
    "Tempering",
    "VarianceNet",
    "VariationalDropout",
    "WeightNoise",
    "make_method",
    "methods",
    "names",
]


def names() -> list[str]:
    """Names of all registered methods."""
    return methods.names()
