"""Posterior families: distributions over named parameters."""

from credo.posteriors.deep_gp import DeepGP
from credo.posteriors.delta import Delta
from credo.posteriors.discrete import Discrete
from credo.posteriors.draw import Draw, Params
from credo.posteriors.dropout import ConcreteDropout, Dropout, length_scale, weight_decay
from credo.posteriors.eigen_kron import EigenKron
from credo.posteriors.family import Family, FamilyPrior, Gaussian, families, startable
from credo.posteriors.flow import Flow
from credo.posteriors.full import Full
from credo.posteriors.gaussian_dropout import GaussianDropout
from credo.posteriors.gaussian_process import SparseGP
from credo.posteriors.group_parts import Scales, scale_parts
from credo.posteriors.group_place import Place
from credo.posteriors.group_scale import GroupScale
from credo.posteriors.kron import Kron
from credo.posteriors.low_rank import LowRank
from credo.posteriors.low_rank_precision import LowRankPrecision
from credo.posteriors.mean_field import MeanField
from credo.posteriors.mixture import Mixture
from credo.posteriors.multiplicative import Multiplicative, Places
from credo.posteriors.nngp import WideNetwork
from credo.posteriors.normal_inverse_gamma import NormalInverseGamma
from credo.posteriors.posterior import Posterior, kl, sampled_kl
from credo.posteriors.posterior_prior import PosteriorPrior
from credo.posteriors.process import Process, RowNoise, gaussian_outputs
from credo.posteriors.samples import Samples
from credo.posteriors.sparse_vd import SparseVD
from credo.posteriors.start import Start
from credo.posteriors.stochastic import Stochastic
from credo.posteriors.structured import StructuredNoise
from credo.posteriors.subnetwork import Subnetwork
from credo.posteriors.zero_mean import ZeroMean

__all__ = [
    "ConcreteDropout",
    "DeepGP",
    "Delta",
    "Discrete",
    "Draw",
    "Dropout",
    "EigenKron",
    "Family",
    "FamilyPrior",
    "Flow",
    "Full",
    "Gaussian",
    "GaussianDropout",
    "GroupScale",
    "Kron",
    "LowRank",
    "LowRankPrecision",
    "MeanField",
    "Mixture",
    "Multiplicative",
    "NormalInverseGamma",
    "Params",
    "Place",
    "Places",
    "Posterior",
    "PosteriorPrior",
    "Process",
    "RowNoise",
    "Samples",
    "Scales",
    "SparseGP",
    "SparseVD",
    "Start",
    "Stochastic",
    "StructuredNoise",
    "Subnetwork",
    "WideNetwork",
    "ZeroMean",
    "families",
    "gaussian_outputs",
    "kl",
    "length_scale",
    "sampled_kl",
    "scale_parts",
    "startable",
    "weight_decay",
]
