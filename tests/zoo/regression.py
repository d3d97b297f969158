"""Linear regression whose answers are known in closed form, computed here with numpy and scipy
alone.
"""

import numpy as np
import torch
from scipy import stats
from torch import nn
from torch.distributions import Normal

from credo import BNN
from credo.likelihoods import Gaussian

PRIOR_STD = 1.25  # exact in single precision, in which torch keeps the arguments of a distribution


def problem(n=30, features=3, outputs=1, std=0.5, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, features))
    x[:, 1] = 0.7 * x[:, 0] + 0.7 * x[:, 1]
    design = np.concatenate([x, np.ones((n, 1))], 1)
    y = design @ rng.normal(size=(features + 1, outputs)) + std * rng.normal(size=(n, outputs))
    return torch.from_numpy(x), torch.from_numpy(y), design


def bnn(features=3, outputs=1, likelihood=None, std=0.5, prior=None, dtype=torch.float64):
    torch.manual_seed(0)
    net = nn.Linear(features, outputs).to(dtype)
    return BNN(
        net,
        Gaussian(std=std) if likelihood is None else likelihood,
        prior=prior or Normal(0.0, PRIOR_STD),
    )


def exact(design, y, std=0.5):
    """Posterior mean and covariance for one output under N(0, PRIOR_STD^2), and the log
    evidence.
    """
    precision = np.eye(design.shape[1]) / PRIOR_STD**2 + design.T @ design / std**2
    cov = np.linalg.inv(precision)
    mean = cov @ design.T @ y / std**2
    cover = PRIOR_STD**2 * design @ design.T + std**2 * np.eye(len(y))
    return mean, cov, stats.multivariate_normal(np.zeros(len(y)), cover).logpdf(y)


def exact_unknown(design, y, shape=0.01, rate=0.01):
    """Normal-inverse-gamma posterior (mean, V, a, b), w given s^2 ~ N(0, s^2 PRIOR_STD^2), and the
    log evidence.
    """
    prior_precision = np.eye(design.shape[1]) / PRIOR_STD**2
    cov = np.linalg.inv(prior_precision + design.T @ design)
    mean = cov @ design.T @ y
    a = shape + len(y) / 2
    b = rate + 0.5 * (y @ y - mean @ np.linalg.inv(cov) @ mean)
    cover = rate / shape * (np.eye(len(y)) + PRIOR_STD**2 * design @ design.T)
    return mean, cov, a, b, stats.multivariate_t(np.zeros(len(y)), cover, df=2 * shape).logpdf(y)


def flat_mean(fitted):
    """Weights then bias of a one-output linear network."""
    mean = fitted.posterior.mean()
    return torch.cat([mean["weight"].reshape(-1), mean["bias"].reshape(-1)]).detach()
