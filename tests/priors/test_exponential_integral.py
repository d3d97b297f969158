import numpy as np
import pytest
import torch
from scipy.special import exp1, expn

from credo.priors.exponential_integral import log_scaled_exp1, scaled_exp1

#: Relative error allowed, in units of the dtype's rounding: the series loses a digit to
#: cancellation at x = 1.
ULPS = 20


def grid(dtype):
    wide, middle = (
        torch.logspace(-30, 30, 2001, dtype=torch.float64),
        torch.linspace(0.5, 2.0, 501, dtype=torch.float64),
    )
    return torch.cat([wide, middle]).to(dtype).requires_grad_()


def reference(n, x):
    """exp(x) E_n(x) in double precision: scipy below 500, the asymptotic series, there exact to
    rounding, above.
    """
    low = np.where(x < 500, x, 1.0)
    term, total = np.ones_like(x), np.zeros_like(x)
    for k in range(8):
        total += term
        term = -term * (n + k) / x
    return np.where(x < 500, np.exp(low) * (exp1(low) if n == 1 else expn(n, low)), total / x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_and_slopes_over_sixty_decades(dtype):
    x = grid(dtype)
    at, eps = x.detach().double().numpy(), torch.finfo(dtype).eps
    first, second = reference(1, at), reference(2, at)
    value, log_value = scaled_exp1(x), log_scaled_exp1(x)
    assert value.dtype == dtype and np.all(
        np.abs(value.detach().numpy() - first) <= ULPS * eps * first
    )
    assert np.all(
        np.abs(log_value.detach().numpy() - np.log(first))
        <= ULPS * eps * np.maximum(1, np.abs(np.log(first)))
    )
    (slope,) = torch.autograd.grad(value.sum(), x)
    (log_slope,) = torch.autograd.grad(log_value.sum(), x)
    expected, representable = (
        second / at,
        second / at > torch.finfo(dtype).tiny,
    )  # the slope 1/x^2 underflows, that of the log does not
    assert np.all(
        np.abs(slope.numpy() + expected)[representable] <= ULPS * eps * expected[representable]
    )
    assert np.all(np.abs(log_slope.numpy() + expected / first) <= ULPS * eps * expected / first)


def test_the_slope_is_the_derivative_and_has_one():
    x = torch.logspace(-3, 3, 40, dtype=torch.float64).requires_grad_()
    for function in (scaled_exp1, log_scaled_exp1):
        assert torch.autograd.gradcheck(function, (x,)) and torch.autograd.gradgradcheck(
            function, (x,)
        )


def test_under_vmap_and_grad():
    x = torch.logspace(-2, 2, 12).reshape(3, 4)
    assert torch.equal(torch.vmap(scaled_exp1)(x), scaled_exp1(x))
    slopes = torch.vmap(torch.func.grad(lambda row: log_scaled_exp1(row).sum()))(x)
    leaf = x.clone().requires_grad_()
    assert torch.allclose(
        slopes, torch.autograd.grad(log_scaled_exp1(leaf).sum(), leaf)[0], rtol=1e-5
    )


def test_the_ends():
    assert scaled_exp1(torch.tensor([0.0])).isinf() and scaled_exp1(torch.tensor([-1.0])).isnan()
