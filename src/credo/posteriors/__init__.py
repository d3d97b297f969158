"""Posterior families: distributions over named parameters."""

from credo.posteriors.delta import Delta
from credo.posteriors.discrete import Discrete
from credo.posteriors.family import Draw, Family, Gaussian, Params, families
from credo.posteriors.flow import Flow
from credo.posteriors.full import Full
from credo.posteriors.kl import Factorised, PosteriorPrior, closed_kl, fold, kl, prior_of, sampled_kl
from credo.posteriors.kron import Kron
from credo.posteriors.low_rank import LowRank
from credo.posteriors.mean_field import MeanField
from credo.posteriors.mixture import Mixture
from credo.posteriors.normal_inverse_gamma import NormalInverseGamma
from credo.posteriors.posterior import Posterior
from credo.posteriors.samples import Samples

__all__ = [
    "Delta", "Discrete", "Draw", "Factorised", "Family", "Flow", "Full", "Gaussian", "Kron", "LowRank", "MeanField", "Mixture", "NormalInverseGamma",
    "Params", "Posterior", "PosteriorPrior", "Samples", "closed_kl", "families", "fold", "kl", "prior_of", "sampled_kl",
]  # fmt: skip
