"""The closed forms against quadrature and against networks of width 10,000."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.special import erf
from scipy.stats import norm
from zoo.stats import has_mean

from credo import BNN
from credo.core.errors import SettingError
from credo.likelihoods import Gaussian
from credo.nets import mlp
from credo.posteriors.wide_kernel import EXPECTATIONS, wide_kernel, wide_variance
from credo.priors import FanIn

CORRELATIONS = (-1.0, -0.999, -0.4, 0.0, 0.3, 0.95, 0.999999, 1.0)


def relu_given(mean, std):
    """E[max(v, 0)] for v ~ N(mean, std^2)."""
    return max(mean, 0.0) if std == 0 else mean * norm.cdf(mean / std) + std * norm.pdf(mean / std)


def erf_given(mean, std):
    """E[erf(v)], by the convolution of two normal distribution functions."""
    return erf(mean / math.sqrt(1 + 2 * std**2))


INNER = {
    "relu": (lambda u: max(u, 0.0), relu_given),
    "erf": (erf, erf_given),
    "identity": (lambda u: u, lambda mean, std: mean),
}


def by_quadrature(name, cov, var1, var2):
    """E[phi(u) E[phi(v) given u]], the inner one known, the outer one adaptive with a break at the
    kink.
    """
    outside, inside = INNER[name]
    spread = math.sqrt(max(var2 - cov**2 / var1, 0.0))
    s = math.sqrt(var1)

    def integrand(z):
        return outside(s * z) * inside(cov / var1 * s * z, spread) * norm.pdf(z)

    return sum(
        quad(integrand, *ends, epsabs=1e-13, epsrel=1e-12, limit=400)[0]
        for ends in ((-12, 0), (0, 12))
    )


@pytest.mark.parametrize("name", EXPECTATIONS)
@pytest.mark.parametrize("variances", [(1.0, 1.0), (0.3, 5.0), (40.0, 0.01)])
def test_expectations_equal_quadrature(name, variances):
    var1, var2 = variances
    for correlation in CORRELATIONS:
        cov = correlation * math.sqrt(var1 * var2)
        ours = EXPECTATIONS[name].product(*torch.tensor([cov, var1, var2], dtype=torch.float64))
        assert abs(float(ours) - by_quadrature(name, cov, var1, var2)) < 1e-8


@pytest.mark.parametrize("name", EXPECTATIONS)
def test_the_recursion_equals_layers_of_quadrature(name):
    x = np.random.default_rng(0).normal(size=(3, 2))
    weights, biases = (1.5, 0.7, 2.0), (0.1, 0.0, 0.3)
    expected = weights[0] * x @ x.T / 2 + biases[0]
    for weight, bias in zip(weights[1:], biases[1:], strict=True):
        layer = [
            [by_quadrature(name, expected[i, j], expected[i, i], expected[j, j]) for j in range(3)]
            for i in range(3)
        ]
        expected = weight * np.array(layer) + bias
    x = torch.from_numpy(x)
    ours = wide_kernel(x, x, weights, biases, [name] * 2)
    assert np.allclose(ours, expected, rtol=0, atol=1e-8)
    assert np.allclose(
        wide_kernel(x[:1], x[1:], weights, biases, [name] * 2), expected[:1, 1:], rtol=0, atol=1e-8
    )
    assert np.allclose(
        wide_variance(x, weights, biases, [name] * 2), expected.diagonal(), rtol=0, atol=1e-8
    )


@pytest.mark.parametrize("name", EXPECTATIONS)
@pytest.mark.parametrize("depth", [1, 3, 12])
def test_equal_inputs_give_the_variance(name, depth):
    """Of sizes from tiny to huge.

    1e-12: a few roundings in every layer; a plain arccos would be off by 1e-8.
    """
    x = torch.randn(
        20, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    ) * torch.logspace(-6, 3, 20).unsqueeze(1)
    arguments = [2.0] * (depth + 1), [0.05] * (depth + 1), [name] * depth
    ours = wide_kernel(x, x.clone(), *arguments).diagonal()
    torch.testing.assert_close(ours, wide_variance(x, *arguments), rtol=1e-12, atol=0.0)


def test_small_angles_follow_the_series():
    """(sin t + (pi - t) cos t) / pi = 1 - t^2 / 2 + t^3 / 3 pi + O(t^4), down to angles whose
    square is rounding.
    """
    for angle in (1e-3, 1e-5, 1e-7, 1e-9):
        ours = EXPECTATIONS["relu"].product(
            torch.tensor(math.cos(angle), dtype=torch.float64), *torch.ones(2, 1).double()
        )
        cosine = math.cos(angle)  # as rounded, which is all that can be asked
        rounded = math.sqrt((1 - cosine) * (1 + cosine))
        assert abs(2 * float(ours) - (1 - rounded**2 / 2 + rounded**3 / (3 * math.pi))) < max(
            angle**4, 1e-15
        )


def test_nothing_is_nan_at_zero_inputs_without_biases():
    x = torch.tensor([[0.0, 0.0], [1.0, -1.0]], dtype=torch.float64)
    kernel = wide_kernel(x, x, (2.0, 2.0), (0.0, 0.0), ["relu"])
    assert torch.equal(kernel[0], torch.zeros(2).double()) and float(kernel[1, 1]) == pytest.approx(
        2.0, rel=1e-14
    )


@pytest.mark.parametrize("name", EXPECTATIONS)
def test_it_is_a_covariance(name):
    x = torch.randn(60, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    kernel = wide_kernel(x, x, (2.0,) * 4, (0.1,) * 4, [name] * 3)
    assert float(torch.linalg.eigvalsh(kernel).min()) > -1e-12 * float(kernel.diagonal().sum())
    torch.testing.assert_close(kernel, kernel.mT, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", ["relu", "erf"])
def test_kernel_equals_monte_carlo_over_networks_of_width_ten_thousand(name):
    """Networks 2-10000-64 drawn from their prior. One layer: products of outputs.

    Two: products of the outputs' activations, whose bias of order 1e-4 is far below the errors,
    which are those of means over independent networks.
    """
    x = torch.randn(3, 2, generator=torch.Generator().manual_seed(2))
    bnn = BNN(mlp(2, (10_000,), 64, activation=name), Gaussian(std=1.0), prior=FanIn(std=1.2))
    units = bnn.functions(x, 120, seed=3, source="prior").double()  # (R, 3, 64)
    upper = torch.triu_indices(3, 3).unbind()
    for depth, values in (
        (1, units),
        (2, units.relu() if name == "relu" else torch.special.erf(units)),
    ):
        weight, bias = (1.0, 0.0) if depth == 1 else (1.44, 1.44)
        products = weight * values @ values.mT / 64 + bias
        kernel = wide_kernel(x, x, [1.44] * (depth + 1), [1.44] * (depth + 1), [name] * depth)
        has_mean(products[:, *upper], kernel[upper])


def test_activations_may_differ_from_layer_to_layer():
    x = torch.randn(4, 2, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    mixed = wide_kernel(x, x, (1.0, 2.0, 3.0), (0.1, 0.2, 0.3), ["identity", "relu"])
    merged = wide_kernel(x, x, (1.0 * 2.0, 3.0), (0.1 * 2.0 + 0.2, 0.3), ["relu"])
    torch.testing.assert_close(mixed, merged)


def test_what_is_refused():
    x = torch.zeros(1, 1)
    with pytest.raises(
        SettingError,
        match=r"no closed form here for the activation 'tanh'.*Known: erf, identity, relu",
    ):
        wide_kernel(x, x, (1.0, 1.0), (0.0, 0.0), ["tanh"])
    with pytest.raises(
        SettingError, match="1 activations need 2 weight and bias variances, got 3 and 2"
    ):
        wide_variance(x, (1.0, 1.0, 1.0), (0.0, 0.0), ["relu"])
