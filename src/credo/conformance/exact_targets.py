"""The posterior that a right method has on conjugate regression: the exact one, or the best member
of its family by the exact ELBO.

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


def _with_bias(weights: Tensor, bias: float) -> Tensor:
    return torch.cat([weights, torch.full((1,), bias, dtype=torch.float64)])


def _ridge(problem: Conjugate, alpha: Tensor, penalty: Tensor | None = None) -> Tensor:
    """argmin over weights and bias of the expected nll plus sum penalty_k w_k^2 / 2, for noise of
    variance ``alpha`` on the inputs.
    """
    design = torch.cat([problem.x, torch.ones(len(problem.x), 1, dtype=torch.float64)], 1)
    gram = design.T @ design
    full = gram + torch.diag(gram.diagonal() * _with_bias(alpha, 0.0))
    if penalty is not None:
        full = full + problem.std**2 * torch.diag(penalty)
    return torch.linalg.solve(full, design.T @ problem.y)


def _expected_nll(problem: Conjugate, mean: Tensor, alpha: Tensor) -> Tensor:
    residual = problem.y - problem.x @ mean[:-1] - mean[-1]
    return (
        residual.square().sum() + (alpha * mean[:-1].square() * problem.x.square().sum(0)).sum()
    ) / (2 * problem.std**2)


def _noisy(mean: Tensor, alpha: Tensor) -> Target:
    """Weights of variance alpha mean^2, and a bias without noise."""
    return Target(mean, _with_bias(alpha * mean[:-1].square(), 0.0))


@targets.register("dropout")
def dropout(problem: Conjugate) -> Target:
    """Masks at the default rate."""
    return _dropout(problem, torch.tensor(0.1, dtype=torch.float64))


def _dropout(problem: Conjugate, p: Tensor) -> Target:
    """Masks at rate p: alpha = p / (1 - p), and a penalty of 1 / (1 - p) = 1 + alpha on weights and
    1 on the bias under N(0, 1).
    """
    alpha = (p / (1 - p)).expand(problem.x.shape[1])
    return _noisy(_ridge(problem, alpha, _with_bias(1 + alpha, 1.0)), alpha)


@targets.register("gaussian_dropout")
def gaussian_dropout(problem: Conjugate) -> Target:
    """The same two moments, so the same optimum."""
    return dropout(problem)


def minimise(loss: Callable[[Tensor], Tensor], start: Tensor, steps: int = 5000) -> Tensor:
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
    """The raw numbers at a minimum of a loss, all from the value ``start``."""
    return minimise(loss, torch.full((size,), start, dtype=torch.float64))


@targets.register("concrete_dropout")
def concrete_dropout(problem: Conjugate) -> Target:
    """One rate for the layer, the best by nll + sum w^2 / (2 (1 - p)) + b^2 / 2 - 3 H(p)."""
    features = problem.x.shape[1]

    def loss(raw: Tensor) -> Tensor:
        p = torch.sigmoid(raw)
        mean, alpha = _dropout(problem, p).mean, (p / (1 - p)).expand(features)
        entropy = -(p * p.log() + (1 - p) * (1 - p).log()).sum()
        prior = 0.5 * (mean[:-1].square().sum() / (1 - p)).sum() + 0.5 * mean[-1] ** 2
        return _expected_nll(problem, mean, alpha) + prior - features * entropy

    return _dropout(problem, torch.sigmoid(_best(loss, 1, -3.0)))


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

    def alpha_and_kl(raw: Tensor) -> tuple[Tensor, Tensor]:
        mu, log_std = raw[:features], raw[features:]
        log_mass = torch.log_softmax(
            -0.5 * ((grid - mu[:, None]) * (-log_std[:, None]).exp()) ** 2, -1
        )
        mass = log_mass.exp()
        first, second = ((mass * (k * grid).exp()).sum(-1) for k in (1, 2))
        return second / first**2 - 1, (mass * (log_mass - math.log(step / 20.0))).sum(-1)

    def loss(raw: Tensor) -> Tensor:
        alpha, kl = alpha_and_kl(raw)
        return _expected_nll(problem, _ridge(problem, alpha), alpha) + kl.sum()

    alpha, _ = alpha_and_kl(_best(loss, 2 * features, -2.0))
    return _noisy(_ridge(problem, alpha), alpha)


@targets.register("variance_net")
def variance_net(problem: Conjugate) -> Target:
    """Weights of mean zero add sum_k std_k^2 norm(x_k)^2 / (2 std^2) to the nll and nothing else:
    best without any, and the bias alone.
    """
    mean = _with_bias(torch.zeros(problem.x.shape[1]).double(), float(problem.y.mean()))
    return Target(mean, torch.zeros_like(mean))


def _log_uniform(problem: Conjugate, to_alpha: Callable[[Tensor], Tensor]) -> Target:
    """One alpha per input, computed from an unbounded number, under the log-uniform prior."""

    def loss(raw: Tensor) -> Tensor:
        alpha = to_alpha(raw)
        return _expected_nll(problem, _ridge(problem, alpha), alpha) + log_uniform_kl(alpha).sum()

    alpha = to_alpha(_best(loss, problem.x.shape[1], -3.0))
    return _noisy(_ridge(problem, alpha), alpha)


def log_uniform_kl(alpha: Tensor) -> Tensor:
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
