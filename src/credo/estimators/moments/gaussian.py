"""Moments of nonlinear functions of Gaussian variables: rectifiers in closed form, smooth functions
by quadrature.

Everything takes means and (co)variances as tensors, is differentiable in both, and stays finite at
zero variance.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from credo.likelihoods.quadrature import hermite, legendre

HERMITE_NODES = 48
HERMITE_TERMS = 16
LEGENDRE_NODES = 12
_FAR = 40.0  # standard deviations from the kink at which a rectifier is linear in either precision


@lru_cache(maxsize=32)
def _nodes(
    kind: Callable[[int], tuple[Tensor, Tensor]],
    count: int,
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    nodes, weights = kind(count)
    return nodes.to(device, dtype), weights.to(device, dtype)


def density(u: Tensor) -> Tensor:
    """phi(u), the standard normal density."""
    return torch.exp(-0.5 * u * u) / math.sqrt(2.0 * math.pi)


def standardise(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """(mean / std, std), with a floor under the variance whose gradient is zero instead of
    infinite.
    """
    floor = torch.finfo(var.dtype).tiny ** 0.75
    std = var.clamp_min(floor).sqrt()
    return (mean / std).clamp(-_FAR, _FAR), std


def relu_moments(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """Mean m Phi(u) + s phi(u) and variance of max(x, 0), x ~ N(m, s^2), u = m / s.

    The variance is s^2 [Phi + u^2 Phi (1 - Phi) + u phi (1 - 2 Phi) - phi^2], which does not
    subtract large squares.
    """
    u, std = standardise(mean, var)
    upper, lower, peak = torch.special.ndtr(u), torch.special.ndtr(-u), density(u)
    ratio = upper + u * u * upper * lower + u * peak * (lower - upper) - peak * peak
    return mean * upper + std * peak, var * ratio.clamp_min(0.0)


def correlation(cov: Tensor, std: Tensor) -> Tensor:
    """cov_ij / (s_i s_j), kept a little inside (-1, 1), where its arcsine has a finite slope."""
    bound = 1.0 - 8.0 * torch.finfo(cov.dtype).eps
    return (cov / (std.unsqueeze(-1) * std.unsqueeze(-2))).clamp(-bound, bound)


def relu_covariance(mean: Tensor, cov: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean ``(B, D)``, covariance ``(B, D, D)`` and P(x > 0) of max(x, 0) for x ~ N(mean, cov).

    Cov = c_ij Phi(u_i) Phi(u_j) + s_i s_j integral_0^rho (rho - r) phi2(u_i, u_j; r) dr (Price
    1958), by Gauss-Legendre quadrature in theta, r = sin(theta), where the integrand has no
    singularity. Exact but for that quadrature.
    """
    var = cov.diagonal(dim1=-2, dim2=-1)
    out, out_var = relu_moments(mean, var)
    u, std = standardise(mean, var)
    rho = correlation(cov, std)
    upper = torch.special.ndtr(u)
    scale = std.unsqueeze(-1) * std.unsqueeze(-2)
    between = cov * upper.unsqueeze(-1) * upper.unsqueeze(-2) + scale * _Overlap.apply(u, rho)
    return out, with_diagonal(between, out_var), upper


class _Overlap(torch.autograd.Function):
    """integral_0^rho (rho - r) phi2(u_i, u_j; r) dr for all pairs, and its derivatives from the
    same nodes.

    With r = sin(theta) and h = exp(-(u_i - u_j)^2 / (2 cos^2) - u_i u_j / (1 + r)), phi2 dr = h
    dtheta / (2 pi). A negative rho is the positive one with u_j reversed. Autograd through the
    nodes would keep a dozen matrices for each of them.
    """

    @staticmethod
    def forward(ctx: Any, u: Tensor, rho: Tensor) -> Tensor:
        sign = torch.where(rho < 0, -1.0, 1.0).to(rho.dtype)
        size = rho * sign
        first, second = u.unsqueeze(-1).expand_as(rho), u.unsqueeze(-2) * sign
        gap, product, limit = first - second, first * second, torch.asin(size)
        half = 0.5 * gap.square()
        total, by_rho, by_first = (torch.zeros_like(rho) for _ in range(3))
        for node, weight in zip(
            *_nodes(legendre, LEGENDRE_NODES, rho.dtype, rho.device), strict=True
        ):
            theta = limit * node
            sine = theta.sin()
            inverse = (
                theta.cos().square_().clamp_min_(torch.finfo(rho.dtype).eps ** 2).reciprocal_()
            )
            rest = (1.0 + sine).reciprocal_()
            height = (half * inverse).add_(product * rest).neg_().exp_().mul_(weight)
            by_rho += height
            height *= size - sine
            total += height
            by_first -= height * (gap * inverse + second * rest)
        limit = limit / (2.0 * math.pi)
        ctx.save_for_backward(by_rho * sign * limit, by_first * limit)
        return total * limit

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        (grad,) = grad_outputs
        by_rho, by_first = ctx.saved_tensors
        # the integral is symmetric, so the derivative for u_j of (i, j) is that for u_i of (j, i)
        return (grad * by_first).sum(-1) + (grad * by_first.mT).sum(-2), grad * by_rho


def with_diagonal(matrix: Tensor, diagonal: Tensor) -> Tensor:
    """The matrices with another diagonal."""
    eye = torch.eye(matrix.shape[-1], dtype=torch.bool, device=matrix.device)
    return torch.where(eye, diagonal.unsqueeze(-1), matrix)


def _evaluate(
    function: Callable[[Tensor], Tensor], mean: Tensor, var: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """f at the nodes ``(..., K)``, the nodes and weights, and the variance used: not below what
    differences of f resolve.
    """
    nodes, weights = _nodes(hermite, HERMITE_NODES, mean.dtype, mean.device)
    used = var.clamp_min(10.0 * torch.finfo(var.dtype).eps ** 0.8)
    return function(mean.unsqueeze(-1) + used.sqrt().unsqueeze(-1) * nodes), nodes, weights, used


def smooth_moments(
    function: Callable[[Tensor], Tensor], mean: Tensor, var: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean and variance of f(x), x ~ N(mean, var), by Gauss-Hermite quadrature."""
    values, _, weights, used = _evaluate(function, mean, var)
    return _first_two(function, mean, var, values, weights, used)


def _first_two(
    function: Callable[[Tensor], Tensor],
    mean: Tensor,
    var: Tensor,
    values: Tensor,
    weights: Tensor,
    used: Tensor,
) -> tuple[Tensor, Tensor]:
    """Both moments scaled by var / used, so that they and their gradients keep their limits as the
    variance goes to zero.
    """
    centre, share = function(mean), var / used
    expected = values @ weights
    own_var = (values - expected.unsqueeze(-1)).square() @ weights
    return centre + share * (expected - centre), share * own_var


def smooth_covariance(
    function: Callable[[Tensor], Tensor], mean: Tensor, cov: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean ``(B, D)`` and covariance ``(B, D, D)`` of f(x) elementwise, x ~ N(mean, cov).

    Cov(f(a), f(b)) = sum_k rho^k g_k(a) g_k(b) with g_k = E[f(m + s z) He_k(z)] / sqrt(k!)
    (Mehler), written as cov_ab times a power series so that it vanishes smoothly with the
    covariance.
    """
    var = cov.diagonal(dim1=-2, dim2=-1)
    values, nodes, weights, used = _evaluate(function, mean, var)
    out, out_var = _first_two(function, mean, var, values, weights, used)
    slopes = (
        values @ (_polynomials(nodes) * weights.unsqueeze(-1)) / used.sqrt().unsqueeze(-1)
    )  # (B, D, terms)
    rho = correlation(cov, standardise(mean, var)[1])
    series = torch.zeros_like(rho)
    for slope in reversed(slopes.unbind(-1)):
        series = series * rho + slope.unsqueeze(-1) * slope.unsqueeze(-2)
    return out, with_diagonal(cov * series, out_var)


def _polynomials(nodes: Tensor) -> Tensor:
    """He_k(z) / sqrt(k!) for k = 1 .. terms at every node: ``(K, terms)``."""
    rows = [torch.ones_like(nodes), nodes]
    for k in range(2, HERMITE_TERMS + 1):
        rows.append((nodes * rows[-1] - math.sqrt(k - 1.0) * rows[-2]) / math.sqrt(k))
    return torch.stack(rows[1:], -1)
