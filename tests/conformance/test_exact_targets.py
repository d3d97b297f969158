"""The optima that conformance compares methods with, against brute force: the exact ELBO on a grid
or by enumeration.
"""

import math

import pytest
import torch
from scipy.integrate import quad
from scipy.special import dawsn
from torch.distributions import Normal

from credo.conformance.exact_targets import log_uniform_kl, targets
from credo.conformance.problems import conjugate
from credo.methods import methods
from credo.priors import log_uniform

CONSTANT = 0.5 * (math.log(2.0) + 0.5772156649015329)  # -E[log |eps|]


@pytest.fixture(scope="module")
def problem():
    return conjugate(num_data=12, std=2.0)


def nll(problem, mean, alpha):
    """E[nll] up to a constant, by enumeration of Gauss-Hermite nodes that match mean and variance:
    factors 1 +- sqrt(alpha).
    """
    total = torch.zeros((), dtype=torch.float64)
    signs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=torch.float64)] * 3)
    for sign in signs:
        weights = mean[:3] * (1 + alpha.sqrt() * sign)
        residual = problem.y - problem.x @ weights - mean[3]
        total = total + residual.square().sum() / (2 * problem.std**2) / len(signs)
    return total


def dropout_loss(problem, mean, p):
    alpha = p / (1 - p) * torch.ones(3, dtype=torch.float64)
    prior = 0.5 * mean[:3].square().sum() / (1 - p) + 0.5 * mean[3] ** 2
    entropy = -(p * torch.log(p) + (1 - p) * torch.log(1 - p))
    return nll(problem, mean, alpha) + prior - 3 * entropy


def is_minimum(loss, point, steps=(1e-3,)):
    """No step along any axis lowers the loss, and its gradient vanishes."""
    point = point.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(point), point)
    assert float(gradient.abs().max()) < 1e-4, gradient
    with torch.no_grad():
        for step in steps:
            for axis in range(len(point)):
                for sign in (-1, 1):
                    moved = point.clone()
                    moved[axis] += sign * step
                    assert loss(moved) > loss(point) - 1e-12


def test_every_methods_target_exists_and_has_the_right_shape(problem):
    for _, method in methods.items():
        target = targets[method.target](conjugate(**method.problem))
        assert target.mean.shape == target.variance.shape == (4,) and bool(
            (target.variance >= 0).all()
        )


def test_the_exact_posterior_and_its_points(problem):
    design = torch.cat([problem.x, torch.ones(12, 1, dtype=torch.float64)], 1)
    precision = torch.eye(4, dtype=torch.float64) + design.T @ design / 4
    mean = torch.linalg.solve(precision, design.T @ problem.y / 4)
    assert torch.allclose(targets["exact"](problem).mean, mean) and torch.allclose(
        targets["exact"](problem).variance, precision.inverse().diagonal()
    )
    assert torch.allclose(targets["mean_field"](problem).variance, 1 / precision.diagonal())
    for name in ("map", "least_squares"):
        assert not targets[name](problem).variance.any()
    residual = problem.y - design @ targets["least_squares"](problem).mean
    assert float((design.T @ residual).abs().max()) < 1e-8


def test_dropout_at_a_fixed_rate_is_a_minimum(problem):
    p = torch.tensor(0.1, dtype=torch.float64)
    for name in ("dropout", "gaussian_dropout"):
        target = targets[name](problem)
        is_minimum(lambda mean: dropout_loss(problem, mean, p), target.mean)
        assert (
            torch.allclose(target.variance[:3], 0.1 / 0.9 * target.mean[:3] ** 2)
            and target.variance[3] == 0
        )


def test_concrete_dropouts_rate_is_a_minimum_too(problem):
    target = targets["concrete_dropout"](problem)
    alpha = target.variance[:3] / target.mean[:3] ** 2
    assert torch.allclose(alpha, alpha[:1].expand(3)), "one rate for the layer"
    p = alpha[0] / (1 + alpha[0])
    assert 0.001 < float(p) < 0.999, "not at an edge"
    is_minimum(
        lambda v: dropout_loss(problem, v[:4], torch.sigmoid(v[4])),
        torch.cat([target.mean, torch.logit(p).reshape(1)]),
    )


class ExactKl(torch.autograd.Function):
    """E[log |1 + sqrt(alpha) eps|] - log(alpha) / 2 = -(Euler's + log 2) / 2 + 2 int_0^u D(t) dt, D
    Dawson's and u = 1 / sqrt(2 alpha).
    """

    @staticmethod
    def forward(ctx, alpha):
        ctx.save_for_backward(alpha)
        areas = [2 * quad(dawsn, 0, 1 / math.sqrt(2 * a), limit=200)[0] for a in alpha.tolist()]
        return torch.tensor(areas, dtype=torch.float64) - CONSTANT

    @staticmethod
    def backward(ctx, gradient):
        (alpha,) = ctx.saved_tensors
        return (
            -gradient
            * torch.from_numpy(dawsn((2 * alpha).rsqrt().numpy()))
            * alpha**-1.5
            / math.sqrt(2)
        )


def test_variational_dropouts_alphas_are_a_minimum_too():
    problem = conjugate()
    target = targets["variational_dropout"](problem)
    alpha = target.variance[:3] / target.mean[:3] ** 2
    assert bool((alpha > 0).all() and (alpha < 1).all())

    def loss(v):
        a = torch.sigmoid(v[4:])
        return nll(problem, v[:4], a) + ExactKl.apply(a).sum()

    is_minimum(loss, torch.cat([target.mean, torch.logit(alpha)]))


def test_structured_prunings_noise_is_nearly_that_of_a_log_normal_without_truncation():
    """The target is found on a grid.

    Away from the ends of the interval closed forms are simple, and must agree that it is the best.
    """
    problem = conjugate()
    target = targets["structured_bp"](problem)
    alpha = target.variance[:3] / target.mean[:3] ** 2

    def loss(log_alpha):
        """sigma^2 = log(1 + alpha), and the entropy of log s is a normal's."""
        a = log_alpha.exp()
        entropy = 0.5 * torch.log(2 * math.pi * math.e * torch.log1p(a))
        return nll(problem, target.mean, a) + (math.log(20.0) - entropy).sum()

    point = alpha.log().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(point), point)
    assert float(gradient.abs().max()) < 0.02, (
        "nats per unit of log alpha: what the truncation at zero still changes"
    )


def test_zero_mean_weights_are_best_without_variance():
    problem = conjugate()
    target = targets["variance_net"](problem)

    def loss(mean, std):
        return (problem.y - mean).square().sum() + (std**2 * problem.x.square().sum(0)).sum()

    best = loss(target.mean[3], target.variance[:3])
    assert not target.mean[:3].any() and not target.variance.any()
    assert all(
        float(loss(target.mean[3] + shift, torch.full((3,), 0.01).double())) > float(best)
        for shift in (-1e-2, 0.0, 1e-2)
    )


ALPHAS = torch.tensor([0.001, 0.05, 0.1, 0.2, 0.30003, 0.5, 0.95], dtype=torch.float64)


def test_the_kl_behind_it_is_exact_and_so_is_its_slope():
    """The integrand has a pole: its values are easy to integrate, its derivative is not."""
    assert torch.allclose(log_uniform_kl(ALPHAS), ExactKl.apply(ALPHAS), atol=1e-3)
    alpha = ALPHAS.clone().requires_grad_()
    found, exact = (
        torch.autograd.grad(kl(alpha).sum(), alpha)[0] for kl in (log_uniform_kl, ExactKl.apply)
    )
    assert torch.allclose(found, exact, rtol=0.02)


def test_the_librarys_fit_is_the_integral_up_to_the_constant_of_its_convention():
    """KL -> 0 as alpha grows; within 0.01 nats, which is how good the fit is."""
    fit = torch.distributions.kl_divergence(
        Normal(torch.ones_like(ALPHAS), ALPHAS.sqrt()), log_uniform()
    )
    assert float((ExactKl.apply(ALPHAS) + CONSTANT - fit).abs().max()) < 0.012
