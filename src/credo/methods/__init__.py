"""Every method, one line each: where it is, and the class whose arguments are its settings."""

from types import ModuleType

from credo.engine.method import Method as Method
from credo.engine.method import make_method as make_method
from credo.engine.method import methods as methods
from credo.methods.dropout.concrete_dropout import ConcreteDropoutMethod as ConcreteDropoutMethod
from credo.methods.dropout.gaussian_dropout import GaussianDropoutMethod as GaussianDropoutMethod
from credo.methods.dropout.mc_batchnorm import MCBatchNorm as MCBatchNorm
from credo.methods.dropout.mc_dropout import MCDropout as MCDropout
from credo.methods.dropout.stochastic import StochasticForward as StochasticForward
from credo.methods.dropout.variational_dropout import VariationalDropout as VariationalDropout
from credo.methods.ensembles.deep_ensemble import DeepEnsemble as DeepEnsemble
from credo.methods.ensembles.multiswag import MultiSWAG as MultiSWAG
from credo.methods.ensembles.snapshot import Snapshot as Snapshot
from credo.methods.ensembles.swag import SWAG as SWAG
from credo.methods.exact.deep_gp import DeepGPMethod as DeepGPMethod
from credo.methods.exact.dkl import DKL as DKL
from credo.methods.exact.exact import Exact as Exact
from credo.methods.exact.nngp import NNGP as NNGP
from credo.methods.laplace.laplace import Laplace as Laplace
from credo.methods.point.map import MAP as MAP
from credo.methods.point.mle import MLE as MLE
from credo.methods.sampling.annealing import Annealing as Annealing
from credo.methods.sampling.csgmcmc import CSGMCMC as CSGMCMC
from credo.methods.sampling.hmc import HMC as HMC
from credo.methods.sampling.importance import Importance as Importance
from credo.methods.sampling.metropolis import Metropolis as Metropolis
from credo.methods.sampling.nuts import NUTS as NUTS
from credo.methods.sampling.psgld import PSGLD as PSGLD
from credo.methods.sampling.sghmc import SGHMC as SGHMC
from credo.methods.sampling.sgld import SGLD as SGLD
from credo.methods.sampling.svgd import SVGD as SVGD
from credo.methods.sampling.tempering import Tempering as Tempering
from credo.methods.sparse.group_horseshoe import GroupHorseshoe as GroupHorseshoe
from credo.methods.sparse.group_normal_jeffreys import GroupNormalJeffreys as GroupNormalJeffreys
from credo.methods.sparse.horseshoe import Horseshoe as Horseshoe
from credo.methods.sparse.soft_weight_sharing import SoftWeightSharing as SoftWeightSharing
from credo.methods.sparse.sparse_vd import SparseVDMethod as SparseVDMethod
from credo.methods.sparse.structured_bp import StructuredBP as StructuredBP
from credo.methods.sparse.variance_net import VarianceNet as VarianceNet
from credo.methods.variational.bbvi import BBVI as BBVI
from credo.methods.variational.bnn_ensemble import BNNEnsemble as BNNEnsemble
from credo.methods.variational.flow import FlowVI as FlowVI
from credo.methods.variational.fvi import FVI as FVI
from credo.methods.variational.ivon import IVON as IVON
from credo.methods.variational.last_layer import LastLayer as LastLayer
from credo.methods.variational.moments import MomentPropagation as MomentPropagation
from credo.methods.variational.vi import VI as VI
from credo.methods.variational.vib import VIB as VIB
from credo.methods.variational.weight_noise import WeightNoise as WeightNoise


def names() -> list[str]:
    """Names of all registered methods."""
    return methods.names()


def __dir__() -> list[str]:
    """Methods and what finds them; not the folders and files they lie in."""
    public = (name for name in globals() if not name.startswith("_") and name != "ModuleType")
    return [name for name in public if not isinstance(globals()[name], ModuleType)]
