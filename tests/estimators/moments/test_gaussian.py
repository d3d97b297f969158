"""Closed forms and quadratures against numerical truth, their gradients, and their limits."""

import math

import pytest
import torch
import torch.nn.functional as F
from scipy.stats import multivariate_normal

from credo.estimators.moments.gaussian import (
    density,
    relu_covariance,
    relu_moments,
    smooth_covariance,
    smooth_moments,
    standardise,
    with_diagonal,
)

SMOOTH = {"tanh": torch.tanh, "gelu": F.gelu, "sigmoid": torch.sigmoid, "softplus": F.softplus}


def grid(function, mean, var):
    """Truth by the trapezium rule on 40,001 points over 12 standard deviations either side."""
    z = torch.linspace(-12, 12, 40_001, dtype=torch.float64)
    weight = density(z) * (z[1] - z[0])
    values = function(mean + math.sqrt(var) * z)
    first = float((weight * values).sum())
    return first, float((weight * (values - first) ** 2).sum())


@pytest.mark.parametrize("mean", [-30.0, -3.0, -0.2, 0.0, 0.7, 4.0, 50.0])
@pytest.mark.parametrize("var", [1e-4, 0.3, 9.0])
def test_relu_moments_against_a_grid(mean, var):
    ours = relu_moments(
        torch.tensor(mean, dtype=torch.float64), torch.tensor(var, dtype=torch.float64)
    )
    first, second = grid(torch.relu, mean, var)
    # The grid's own error at the kink: step^2 / 24 times the jump of the slope, with a step of 6e-4
    # standard deviations.
    assert float(ours[0]) == pytest.approx(first, abs=1e-7 * math.sqrt(var), rel=1e-7)
    assert float(ours[1]) == pytest.approx(second, abs=1e-6 * var)


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("std", [0.1, 1.0, 3.0])
def test_smooth_moments_against_a_grid(name, std):
    for mean in (-2.0, 0.3, 1.5):
        ours = smooth_moments(
            SMOOTH[name], torch.tensor(mean).double(), torch.tensor(std**2).double()
        )
        first, second = grid(SMOOTH[name], mean, std**2)
        # Measured with 48 nodes: 2e-7 up to std 1; at std 3 tanh is nearly a step and errs by 1e-3
        # of the std, 8e-3 of the variance.
        assert float(ours[0]) == pytest.approx(
            first, abs=(2e-3 if std > 1 else 1e-6) * math.sqrt(second)
        )
        assert float(ours[1]) == pytest.approx(second, rel=1e-2 if std > 1 else 1e-6)


def plane(function, mean, var, rho):
    """E of products by a product grid in independent coordinates: a = z, b = rho z + sqrt(1 -
    rho^2) t.
    """
    z = torch.linspace(-9, 9, 2401, dtype=torch.float64)
    weight = density(z) * (z[1] - z[0])
    a = function(mean[0] + math.sqrt(var[0]) * z)
    b = function(mean[1] + math.sqrt(var[1]) * (rho * z.unsqueeze(1) + math.sqrt(1 - rho**2) * z))
    given = b @ weight
    centred = a - (weight * a).sum()
    return float((weight * centred * given).sum())


@pytest.mark.parametrize("rho", [-0.999, -0.9, -0.3, 0.0, 0.2, 0.7, 0.95, 0.999])
@pytest.mark.parametrize("mean", [(0.0, 0.0), (0.5, -1.2), (-2.0, -1.5), (3.0, 0.1), (1.0, 1.05)])
def test_relu_covariance_against_a_grid(mean, rho):
    var = (0.5, 2.0)
    cov = rho * math.sqrt(var[0] * var[1])
    matrix = torch.tensor([[[var[0], cov], [cov, var[1]]]], dtype=torch.float64)
    ours = relu_covariance(torch.tensor([mean], dtype=torch.float64), matrix)[1]
    # The grid's error at the kinks is below 1e-5; 12 nodes are that exact too.
    assert float(ours[0, 0, 1]) == pytest.approx(plane(torch.relu, mean, var, rho), abs=5e-5)


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("rho", [-0.95, -0.5, 0.1, 0.8, 0.99])
def test_smooth_covariance_against_a_grid(name, rho):
    var, mean = (0.5, 2.0), (0.4, -1.0)
    cov = rho * math.sqrt(var[0] * var[1])
    matrix = torch.tensor([[[var[0], cov], [cov, var[1]]]], dtype=torch.float64)
    ours = smooth_covariance(SMOOTH[name], torch.tensor([mean], dtype=torch.float64), matrix)[1]
    assert float(ours[0, 0, 1]) == pytest.approx(plane(SMOOTH[name], mean, var, rho), abs=1e-5)


def test_the_slope_of_the_relu_covariance_is_an_orthant_probability():
    """Price's theorem: d Cov / d c = P(a > 0, b > 0), against scipy's bivariate normal."""
    mean = torch.tensor([[0.3, -0.4]], dtype=torch.float64)
    base = torch.tensor([[[1.0, 0.6], [0.6, 1.5]]], dtype=torch.float64)
    c = torch.tensor(0.6, dtype=torch.float64, requires_grad=True)
    cov = base + (c - 0.6) * torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    slope = torch.autograd.grad(relu_covariance(mean, cov)[1][0, 0, 1], c)[0]
    truth = multivariate_normal([-0.3, 0.4], base[0].numpy()).cdf([0.0, 0.0])
    assert float(slope) == pytest.approx(truth, abs=1e-6)


def symmetric(raw):
    return raw @ raw.mT + 0.3 * torch.eye(raw.shape[-1], dtype=raw.dtype)


def test_gradients_by_finite_differences():
    mean = torch.randn(1, 3, dtype=torch.float64, requires_grad=True)
    raw = torch.randn(1, 3, 3, dtype=torch.float64, requires_grad=True)
    var = (torch.rand(1, 3, dtype=torch.float64) + 0.2).requires_grad_()
    check = torch.autograd.gradcheck
    assert check(relu_moments, (mean, var))
    assert check(lambda m, r: relu_covariance(m, symmetric(r))[:2], (mean, raw))
    for function in (torch.tanh, F.gelu):
        assert check(lambda m, v, f=function: smooth_moments(f, m, v), (mean, var))
        assert check(lambda m, r, f=function: smooth_covariance(f, m, symmetric(r)), (mean, raw))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("form", ["relu", "tanh"])
def test_values_and_gradients_at_zero_variance(form, dtype):
    """A certain input gives the function itself, and slopes f'(m) for the mean and f'(m)^2 for the
    variance.
    """
    mean = torch.tensor([[-2.0, 0.5, 0.0, 3.0]], dtype=dtype, requires_grad=True)
    cov = torch.zeros(1, 4, 4, dtype=dtype, requires_grad=True)
    var = torch.zeros(1, 4, dtype=dtype, requires_grad=True)
    single = relu_moments(mean, var) if form == "relu" else smooth_moments(torch.tanh, mean, var)
    joint = (
        relu_covariance(mean, cov)[:2]
        if form == "relu"
        else smooth_covariance(torch.tanh, mean, cov)
    )
    function = torch.relu if form == "relu" else torch.tanh
    close = 5 * torch.finfo(dtype).eps ** 0.5
    for out, spread, source in ((*single, var), (*joint, cov)):
        assert (
            torch.allclose(out, function(mean), atol=close)
            and float(spread.detach().abs().max()) == 0.0
        )
        grads = torch.autograd.grad(out.sum() + spread.sum(), (mean, source), retain_graph=True)
        assert all(torch.isfinite(g).all() for g in grads)
    slope = torch.autograd.grad(function(mean).sum(), mean)[0]
    grad = torch.autograd.grad((single[1]).sum(), var, retain_graph=True)[0]
    away = mean.detach()[0] != 0
    # tanh: the slope of the variance is a difference quotient at the smallest step the type
    # resolves
    assert torch.allclose(grad[0, away], slope[0, away] ** 2, atol=20 * close)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_perfect_correlation_is_finite_and_symmetric(dtype):
    mean = torch.tensor([[0.3, 0.3, -0.3]], dtype=dtype, requires_grad=True)
    scale = torch.tensor([[1.0, 1.0, -1.0]], dtype=dtype)
    cov = (scale.unsqueeze(-1) * scale.unsqueeze(-2)).requires_grad_()
    _, out, _ = relu_covariance(mean, cov)
    assert torch.allclose(out, out.mT) and torch.allclose(out[0, 0, 1], out[0, 0, 0], atol=1e-4)
    grads = torch.autograd.grad(out.sum(), (mean, cov))
    assert all(torch.isfinite(g).all() for g in grads)


def test_float32_agrees_with_float64_far_from_the_kink():
    mean, var = torch.tensor([1e3, -1e3, 5.0]), torch.tensor([1e-2, 1e-2, 1e-4])
    out, spread = relu_moments(mean, var)
    assert torch.allclose(out, torch.tensor([1e3, 0.0, 5.0])) and torch.allclose(
        spread, torch.tensor([1e-2, 0.0, 1e-4])
    )


def test_standardise_and_with_diagonal():
    u, std = standardise(torch.tensor([1.0, 5.0]), torch.tensor([4.0, 0.0]))
    assert float(u[0]) == 0.5 and float(std[0]) == 2.0 and float(u[1]) == 40.0
    out = with_diagonal(torch.ones(2, 2, 2), torch.full((2, 2), 3.0))
    assert torch.equal(out[0], torch.tensor([[3.0, 1.0], [1.0, 3.0]]))
