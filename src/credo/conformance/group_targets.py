"""The best group-sparse posteriors on conjugate regression, by the exact ELBO and without the
library's own families.

One output: with groups of inputs every weight has a scale to itself, w_k = z_k v_k; with groups of
output units all weights and the bias share one. The expected nll needs E[w] and the whole
covariance, since what a layer shares correlates its weights: (norm(y - A E[w])^2 + tr(A^T A
Cov[w])) / (2 std^2) for the design A.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from credo.conformance.exact_targets import Target, log_uniform_kl, minimise, targets
from credo.conformance.problems import Conjugate


def _nll(problem: Conjugate, mean: Tensor, cov: Tensor) -> Tensor:
    design = torch.cat([problem.x, torch.ones(len(problem.x), 1, dtype=torch.float64)], 1)
    residual = problem.y - design @ mean
    return (residual.square().sum() + (design.T @ design * cov).sum()) / (2 * problem.std**2)


def _normal_kl(mean: Tensor, log_std: Tensor) -> Tensor:
    """Sum of KL[N(mean, std^2), N(0, 1)]."""
    return (0.5 * (mean.square() + (2 * log_std).exp() - 1) - log_std).sum()


def _with_bias(mean: Tensor, cov: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """The bias as a point beside the weights."""
    return torch.cat([mean, bias]), torch.nn.functional.pad(cov, (0, 1, 0, 1))


@targets.register("group_normal_jeffreys")
def group_normal_jeffreys(problem: Conjugate) -> Target:
    """Raw numbers: mu, log sigma, mu_z, log sigma_z of every input, and the bias."""
    features = problem.x.shape[1]

    def at(raw: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mu, log_std, z, log_z = raw[: 4 * features].reshape(4, features)
        var, z_var = (2 * log_std).exp(), (2 * log_z).exp()
        weight_var = z.square() * var + z_var * mu.square() + z_var * var
        mean, cov = _with_bias(z * mu, torch.diag(weight_var), raw[-1:])
        return mean, cov, _normal_kl(mu, log_std) + log_uniform_kl(z_var / z.square()).sum()

    return _solved(problem, at, [problem.least_squares[:-1], -3.0, 1.0, -3.0], features)


def _half_cauchy_kl(loc: Tensor, log_std: Tensor) -> Tensor:
    """KL of log-normal a and b (rows 0 and 1) from Gamma(1/2, 1) and inverse-Gamma(1/2, 1): z^2 = a
    b is then that of a half-Cauchy z.
    """
    signed = torch.stack([loc[0], -loc[1]])
    expected = (signed + 0.5 * (2 * log_std).exp()).exp()  # E[a] and E[1 / b]
    return (expected - 0.5 * signed - log_std - 0.5 * (1 + math.log(2))).sum()


def _log_scale(loc: Tensor, log_std: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of log z = (log a + log b) / 2."""
    return 0.5 * loc.sum(0), 0.25 * (2 * log_std).exp().sum(0)


@targets.register("group_horseshoe")
def group_horseshoe(problem: Conjugate) -> Target:
    """Raw numbers: mu, log sigma, and mean and log deviation of log a and log b, of every input;
    the last four also of the layer.
    """
    features = problem.x.shape[1]

    def at(raw: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mu, log_std = raw[: 2 * features].reshape(2, features)
        loc, log_std_scale = raw[2 * features : -1].reshape(2, 2, features + 1)
        center, width = _log_scale(loc, log_std_scale)
        first, second = (center + width / 2).exp(), (2 * center + 2 * width).exp()
        local = mu * first[:-1]
        inner = torch.outer(local, local) + torch.diag(
            second[:-1] * (mu.square() + (2 * log_std).exp()) - local.square()
        )
        mean, cov = (
            first[-1] * local,
            second[-1] * inner - first[-1] ** 2 * torch.outer(local, local),
        )
        return *_with_bias(mean, cov, raw[-1:]), _normal_kl(mu, log_std) + _half_cauchy_kl(
            loc, log_std_scale
        )

    return _solved(problem, at, [problem.least_squares[:-1], -3.0], features, 2 * (features + 1))


@targets.register("horseshoe")
def horseshoe(problem: Conjugate) -> Target:
    """One unit: its scale times the layer's scale multiplies all weights and the bias."""
    size = problem.x.shape[1] + 1

    def at(raw: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mu, log_std = raw[: 2 * size].reshape(2, size)
        loc, log_std_scale = raw[2 * size :].reshape(2, 2, 2)
        center, width = (part.sum() for part in _log_scale(loc, log_std_scale))
        first, second = (center + width / 2).exp(), (2 * center + 2 * width).exp()
        cov = (second - first**2) * torch.outer(mu, mu) + second * torch.diag((2 * log_std).exp())
        return first * mu, cov, _normal_kl(mu, log_std) + _half_cauchy_kl(loc, log_std_scale)

    return _solved(problem, at, [problem.least_squares, -3.0], size, 4, bias=False)


def _solved(
    problem: Conjugate,
    at: Callable[[Tensor], tuple[Tensor, Tensor, Tensor]],
    start: list[Tensor | float],
    size: int,
    scales: int = 0,
    bias: bool = True,
) -> Target:
    """The minimum over raw numbers that begin with rows of ``size`` at ``start``, then twice
    ``scales`` at 0 and -3, then the bias if it is a point.
    """
    rows = [
        row if isinstance(row, Tensor) else torch.full((size,), row, dtype=torch.float64)
        for row in start
    ]
    raw = torch.cat([*rows, torch.zeros(scales).double(), torch.full((scales,), -3.0).double()])
    if bias:
        raw = torch.cat([raw, problem.least_squares[-1:]])

    def loss(numbers: Tensor) -> Tensor:
        mean, cov, kl = at(numbers)
        return _nll(problem, mean, cov) + kl

    mean, cov, _ = at(minimise(loss, raw))
    return Target(mean, cov.diagonal())
