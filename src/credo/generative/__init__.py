"""Generative models: variational autoencoders, plain and fully Bayesian, and what is measured of
them.
"""

from credo.generative import codes, priors
from credo.generative.autoencoders import VAE, Autoencoder
from credo.generative.bounds import Bound
from credo.generative.outliers import Compressor, LikelihoodRatio, perturb
from credo.generative.vae_files import load

__all__ = [
    "VAE",
    "Autoencoder",
    "Bound",
    "Compressor",
    "LikelihoodRatio",
    "codes",
    "load",
    "perturb",
    "priors",
]
