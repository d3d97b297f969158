"""What a method reaches on conjugate regression: the exact posterior, or the best member of its
family by the exact ELBO.

For noise s on the three inputs with E[s] = 1 and V[s] = alpha the expected nll is known, (norm(y -
X w - b)^2 + sum_k alpha_k w_k^2 norm(x_k)^2) / (2 std^2), and so is each family's KL: the optimum
is found here without any of the library's own code.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from credo.conformance.problems import Conjugate
from credo.core.registry import Registry


class Target(NamedTuple):
    """Mean and variance of weights and bias."""

    mean: Tensor
    variance: Tensor


targets: Registry[Callable[[Conjugate], Target]] = Registry("target")


@targets.register("exact")
def exact(problem: Conjugate) -> Target:
    """The posterior itself."""
    return Target(problem.mean, problem.covariance.diagonal())


@targets.register("mean_field")
def mean_field(problem: Conjugate) -> Target:
    """Independent weights: the right means, and variances 1 / diag(precision)."""
    return Target(problem.mean, 1 / problem.precision.diagonal())


@targets.register("map")
def mode(problem: Conjugate) -> Target:
    """A point at the posterior's mode."""
    return Target(problem.mean, torch.zeros_like(problem.mean))


@targets.register("least_squares")
def least_squares(problem: Conjugate) -> Target:
    """A point without a prior."""
    return Target(problem.least_squares, torch.zeros_like(problem.mean))


def _ridge(problem: Conjugate, alpha: Tensor, penalty: Tensor) -> Tensor:
    """argmin of the expected nll plus sum penalty_k w_k^2 / 2, over weights and bias (whose alpha
    is 0).
    """
    design = torch.cat([problem.x, torch.ones(len(problem.x), 1, dtype=torch.float64)], 1)
    gram = design.T @ design
    full = gram + torch.diag(gram.diagonal() * alpha) + problem.std**2 * torch.diag(penalty)
    return torch.linalg.solve(full, design.T @ problem.y)


def _expected_nll(problem: Conjugate, mean: Tensor, alpha: Tensor) -> Tensor:
    residual = problem.y - problem.x @ mean[:-1] - mean[-1]
    return (
        residual.square().sum() + (alpha * mean[:-1].square() * problem.x.square().sum(0)).sum()
    ) / (2 * problem.std**2)


def _noisy(mean: Tensor, alpha: Tensor) -> Target:
    return Target(
        mean, torch.cat([alpha * mean[:-1].square(), torch.zeros(1, dtype=torch.float64)])
    )


@targets.register("dropout")
def dropout(problem: Conjugate, p: float = 0.1) -> Target:
    """Masks at the default rate: alpha = p / (1 - p), and a penalty of 1 / (1 - p) on weights and 1
    on the bias under N(0, 1).
    """
    alpha = torch.full((problem.x.shape[1],), p / (1 - p), dtype=torch.float64)
    zero = torch.zeros(1, dtype=torch.float64)
    return _noisy(
        _ridge(problem, torch.cat([alpha, zero]), torch.cat([1 + alpha, zero + 1])), alpha
    )


@targets.register("gaussian_dropout")
def gaussian_dropout(problem: Conjugate) -> Target:
    """The same two moments, so the same optimum."""
    return dropout(problem)


def lowest(loss: Callable[[Tensor], Tensor], start: Tensor, steps: int = 5000) -> Tensor:
    """The raw numbers at a minimum of a loss, by L-BFGS."""
    raw = start.clone().requires_grad_()
    optimizer = torch.optim.LBFGS(
        [raw],
        max_iter=steps,
        tolerance_grad=1e-10,
        tolerance_change=0.0,
        line_search_fn="strong_wolfe",
    )

    def closure() -> float:
        optimizer.zero_grad()
        value = loss(raw)
        value.backward()
        return float(value.detach())

    optimizer.step(closure)  # type: ignore[arg-type]
    return raw.detach()


def _best(loss: Callable[[Tensor], Tensor], size: int, start: float) -> Tensor:
    """The raw numbers, all from one start, that minimise a loss already minimised over weights."""
    return lowest(loss, torch.full((size,), start, dtype=torch.float64))


@targets.register("concrete_dropout")
def concrete_dropout(problem: Conjugate) -> Target:
    """One rate for the layer, the best by nll + sum w^2 / (2 (1 - p)) + b^2 / 2 - 3 H(p)."""
    features = problem.x.shape[1]

    def loss(raw: Tensor) -> Tensor:
        p = torch.sigmoid(raw)
        target = dropout_at(p)
        mean, alpha = target.mean, (p / (1 - p)).expand(features)
        entropy = -(p * p.log() + (1 - p) * (1 - p).log()).sum()
        prior = 0.5 * (mean[:-1].square().sum() / (1 - p)).sum() + 0.5 * mean[-1] ** 2
        return _expected_nll(problem, mean, alpha) + prior - features * entropy

    def dropout_at(p: Tensor) -> Target:
        alpha, zero = (p / (1 - p)).expand(features), torch.zeros(1, dtype=torch.float64)
        return _noisy(
            _ridge(problem, torch.cat([alpha, zero]), torch.cat([1 + alpha, zero + 1])), alpha
        )

    return dropout_at(torch.sigmoid(_best(loss, 1, -3.0)))


@targets.register("variational_dropout")
def variational_dropout(problem: Conjugate) -> Target:
    """One alpha < 1 per input under the log-uniform prior, whose KL has an exact slope."""
    return _log_uniform(problem, torch.sigmoid)


@targets.register("sparse_vd")
def sparse_vd(problem: Conjugate) -> Target:
    """One alpha of any size per weight under the same prior; with one output a weight has an input
    to itself.
    """
    return _log_uniform(problem, torch.exp)


@targets.register("structured_bp")
def structured_bp(problem: Conjugate) -> Target:
    """Log-normal factors on [e^-20, 1] under a log-uniform prior: moments and entropy of log s on a
    grid, no closed form of either.
    """
    features, step = problem.x.shape[1], 5e-3
    grid = torch.arange(-20.0, 0.0, step, dtype=torch.float64) + step / 2

    def of(raw: Tensor) -> tuple[Tensor, Tensor]:
        mu, log_std = raw[:features], raw[features:]
        log_mass = torch.log_softmax(
            -0.5 * ((grid - mu[:, None]) * (-log_std[:, None]).exp()) ** 2, -1
        )
        mass = log_mass.exp()
        first, second = ((mass * (k * grid).exp()).sum(-1) for k in (1, 2))
        return second / first**2 - 1, (mass * (log_mass - math.log(step / 20.0))).sum(-1)

    def at(alpha: Tensor) -> Tensor:
        zero = torch.zeros(1, dtype=torch.float64)
        return _ridge(
            problem, torch.cat([alpha, zero]), torch.zeros(features + 1, dtype=torch.float64)
        )

    def loss(raw: Tensor) -> Tensor:
        alpha, kl = of(raw)
        return _expected_nll(problem, at(alpha), alpha) + kl.sum()

    alpha, _ = of(_best(loss, 2 * features, -2.0))
    return _noisy(at(alpha), alpha)


@targets.register("variance_net")
def variance_net(problem: Conjugate) -> Target:
    """Weights of mean zero add sum_k std_k^2 norm(x_k)^2 / (2 std^2) to the nll and nothing else:
    best without any, and the bias alone.
    """
    zero = torch.zeros(problem.x.shape[1], dtype=torch.float64)
    mean = torch.cat([zero, problem.y.mean().reshape(1)])
    return Target(mean, torch.zeros_like(mean))


def _log_uniform(problem: Conjugate, to_alpha: Callable[[Tensor], Tensor]) -> Target:
    features = problem.x.shape[1]

    def at(alpha: Tensor) -> Tensor:
        zero = torch.zeros(1, dtype=torch.float64)
        return _ridge(
            problem, torch.cat([alpha, zero]), torch.zeros(features + 1, dtype=torch.float64)
        )

    def loss(raw: Tensor) -> Tensor:
        alpha = to_alpha(raw)
        return _expected_nll(problem, at(alpha), alpha) + _log_uniform_kl(alpha).sum()

    alpha = to_alpha(_best(loss, features, -3.0))
    return _noisy(at(alpha), alpha)


def _log_uniform_kl(alpha: Tensor) -> Tensor:
    """KL[N(1, alpha), c / |s|] up to a constant, with its exact slope -D(1 / sqrt(2 alpha))
    alpha^-3/2 / sqrt 2 (D: Dawson).
    """
    return _LogUniformKl.apply(alpha)  # type: ignore[return-value]


class _LogUniformKl(torch.autograd.Function):
    """2 times the integral of Dawson's function D from 0 to 1 / sqrt(2 alpha), minus (gamma + log
    2) / 2.
    """

    @staticmethod
    def forward(ctx: Any, alpha: Tensor) -> Tensor:
        """The integral, by Gauss-Legendre quadrature."""
        import numpy as np
        from scipy.special import dawsn

        ctx.save_for_backward(alpha)
        ends = 1 / np.sqrt(2 * alpha.detach().numpy())
        nodes, weights = np.polynomial.legendre.leggauss(200)
        points = ends[..., None] * (nodes + 1) / 2
        integral = (dawsn(points) * weights).sum(-1) * ends / 2
        return torch.from_numpy(2 * integral - (np.euler_gamma + math.log(2)) / 2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """The exact slope."""
        from scipy.special import dawsn

        (alpha,) = ctx.saved_tensors
        dawson = torch.from_numpy(dawsn((1 / (2 * alpha).sqrt()).numpy()))
        return -grad * dawson * alpha**-1.5 / math.sqrt(2)
