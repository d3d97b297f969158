"""Posterior and log evidence of a linear regression whose prior is conjugate, with known noise and
with unknown noise.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from credo.core.errors import SettingError
from credo.core.sites import FlatLayout
from credo.engine.fit_job import FitJob
from credo.engine.linear_gaussian import accumulate, noise_std, normal_prior, solve
from credo.engine.model import Model
from credo.posteriors import Full, NormalInverseGamma


class RegressionPrior(NamedTuple):
    """Normal over the flat vector of weights, and shape and rate of the inverse-gamma over an
    unknown noise variance, in whose units the precision then is.
    """

    mean: Tensor
    precision: Tensor
    shape: float
    rate: float


def regression_prior(
    model: Model, layout: FlatLayout, unknown: bool, shape: float, rate: float
) -> RegressionPrior:
    """An earlier posterior of the same kind over the same parameters, else the model's normal prior
    with this ``shape`` and ``rate``; a learned prior is refused.
    """
    if model.prior.parts():
        raise SettingError(
            f"exact needs a fixed prior; {model.prior.describe()!r} is learned: use "
            "method='vi' for it."
        )
    earlier = model.prior.earlier_posterior
    for family in [] if earlier is None else earlier.members:
        normal = family.conjugate_normal()
        if (
            normal is not None
            and unknown == (normal.noise is not None)
            and set(normal.names) == set(layout.shapes)
        ):
            precision = torch.cholesky_inverse(normal.tril.cpu())
            return RegressionPrior(normal.mean.cpu(), precision, *(normal.noise or (0.0, 0.0)))
    mean, var = normal_prior(model, layout)
    return RegressionPrior(mean, torch.diag(1.0 / var), shape, rate)


class _Solved(NamedTuple):
    """What both kinds of noise need: mean, Cholesky factor of the covariance, the sum of squares
    that the posterior mean and the prior leave, 1/2 log(det P0 / det P), and the number of scalar
    observations.
    """

    mean: Tensor
    tril: Tensor
    misfit: float
    log_ratio: float
    count: int


def _solved(
    model: Model, fit_job: FitJob, layout: FlatLayout, prior: RegressionPrior, std: Tensor
) -> _Solved:
    """One pass over the data, each output in units of its ``std``."""
    sums = accumulate(model, fit_job, layout, std, model.values(), model.buffers())
    mean, tril, precision, factor = solve(prior.mean, prior.precision, sums)
    misfit = (
        sums.square
        + float(prior.mean @ prior.precision @ prior.mean)
        - float(mean @ precision @ mean)
    )
    log_ratio = 0.5 * float(torch.linalg.slogdet(prior.precision).logabsdet) - float(
        factor.diagonal().log().sum()
    )
    return _Solved(mean, tril, misfit, log_ratio, sums.count)


def known_noise(
    model: Model, fit_job: FitJob, layout: FlatLayout, prior: RegressionPrior
) -> tuple[Full, float]:
    """N(mean, P^-1), and log p(D) in nats."""
    std = noise_std(model)
    mean, tril, misfit, log_ratio, count = _solved(model, fit_job, layout, prior, std)
    family = Full({n: tuple(s) for n, s in layout.shapes.items()}, "float64").set(mean, tril)
    log_noise = float(std.log().expand(_width(fit_job)).sum()) * fit_job.source.num_data
    evidence = log_ratio - 0.5 * misfit - 0.5 * count * math.log(2 * math.pi) - log_noise
    return family, evidence


def unknown_noise(
    model: Model, fit_job: FitJob, layout: FlatLayout, prior: RegressionPrior
) -> tuple[NormalInverseGamma, float]:
    """w given s^2 ~ N(mean, s^2 P^-1) with s^2 ~ InverseGamma, and log p(D) in nats."""
    std = torch.ones((), dtype=torch.float64)
    mean, tril, misfit, log_ratio, count = _solved(model, fit_job, layout, prior, std)
    shape, rate = prior.shape + 0.5 * count, prior.rate + 0.5 * misfit
    family = NormalInverseGamma(layout.shapes).set(mean, tril, shape, rate)
    evidence = (
        log_ratio
        + prior.shape * math.log(prior.rate)
        - shape * math.log(rate)
        + math.lgamma(shape)
        - math.lgamma(prior.shape)
    )
    return family, evidence - 0.5 * count * math.log(2 * math.pi)


def _width(fit_job: FitJob) -> int:
    """Columns of the targets."""
    targets = fit_job.source.targets()
    return 1 if targets.dim() == 1 else targets.shape[1]
