"""Generative models: variational autoencoders, plain and fully Bayesian, and what is measured of them."""

from credo.generative import codes, priors
from credo.generative.bounds import Bound
from credo.generative.files import load
from credo.generative.outliers import Compressor, LikelihoodRatio, perturb
from credo.generative.vae import VAE, Autoencoder

__all__ = ["VAE", "Autoencoder", "Bound", "Compressor", "LikelihoodRatio", "codes", "load", "perturb", "priors"]
