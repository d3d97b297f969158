"""Posterior families: distributions over named parameters."""

from credo.posteriors.delta import Delta
from credo.posteriors.discrete import Discrete
from credo.posteriors.dropout import ConcreteDropout, Dropout, length_scale, weight_decay
from credo.posteriors.family import Draw, Family, Gaussian, Params, families
from credo.posteriors.flow import Flow
from credo.posteriors.full import Full
from credo.posteriors.gaussian_dropout import GaussianDropout
from credo.posteriors.kl import Factorised, PosteriorPrior, closed_kl, fold, kl, prior_of, sampled_kl
from credo.posteriors.kron import Kron
from credo.posteriors.low_rank import LowRank
from credo.posteriors.mean_field import MeanField
from credo.posteriors.mixture import Mixture
from credo.posteriors.multiplicative import Multiplicative, Places
from credo.posteriors.normal_inverse_gamma import NormalInverseGamma
from credo.posteriors.posterior import Posterior
from credo.posteriors.samples import Samples
from credo.posteriors.stochastic import Stochastic

__all__ = [
    "ConcreteDropout", "Delta", "Discrete", "Draw", "Dropout", "Factorised", "Family", "Flow", "Full", "Gaussian", "GaussianDropout", "Kron",
    "LowRank", "MeanField", "Mixture", "Multiplicative", "NormalInverseGamma", "Params", "Places", "Posterior", "PosteriorPrior", "Samples",
    "Stochastic", "closed_kl", "families", "fold", "kl", "length_scale", "prior_of", "sampled_kl", "weight_decay",
]  # fmt: skip
