"""Likelihoods: what the network's outputs say about y."""

from credo.likelihoods.base import Likelihood, get, likelihoods
from credo.likelihoods.bernoulli import Bernoulli
from credo.likelihoods.categorical import Categorical
from credo.likelihoods.continuous_bernoulli import ContinuousBernoulli
from credo.likelihoods.full_gaussian import FullGaussian
from credo.likelihoods.gaussian import Gaussian
from credo.likelihoods.heteroscedastic import Heteroscedastic
from credo.likelihoods.laplace import Laplace
from credo.likelihoods.pixels import Pixels
from credo.likelihoods.poisson import Poisson
from credo.likelihoods.student_t import StudentT

__all__ = [
    "Bernoulli",
    "Categorical",
    "ContinuousBernoulli",
    "FullGaussian",
    "Gaussian",
    "Heteroscedastic",
    "Laplace",
    "Likelihood",
    "Pixels",
    "Poisson",
    "StudentT",
    "get",
    "likelihoods",
]
