from __future__ import annotations

import numpy as np
import pytest
import torch

from credo.core.errors import SettingError
from credo.likelihoods import Laplace


def test_expected_log_prob_against_a_dense_sum():
    """A million-point Riemann sum over f; its error at the kink is of order step^2 = 1e-10."""
    likelihood = Laplace(0.4)
    mean, var, y = 0.3, 0.7, 1.1
    f = np.linspace(mean - 10, mean + 10, 1_000_001)
    weight = np.exp(-0.5 * (f - mean) ** 2 / var)
    expected = (weight * (-np.log(0.8) - np.abs(y - f) / 0.4)).sum() / weight.sum()
    tensors = (torch.tensor([[v]], dtype=torch.float64) for v in (mean, var, y))
    assert likelihood.expected_log_prob(*tensors).item() == pytest.approx(expected, abs=1e-8)


def test_gradient_at_zero_variance_is_finite():
    mean = torch.zeros(2, 1, requires_grad=True)
    var = torch.zeros(2, 1, requires_grad=True)
    Laplace().expected_log_prob(mean, var, torch.tensor([[0.0], [1.0]])).sum().backward()
    assert mean.grad is not None and var.grad is not None
    assert bool(mean.grad.isfinite().all() and var.grad.isfinite().all())


def test_variance_is_twice_the_squared_scale():
    torch.testing.assert_close(Laplace(0.5).moments(torch.zeros(1, 2))[1], torch.full((1, 2), 0.5))
    with pytest.raises(SettingError, match="scale=-1"):
        Laplace(-1.0)
