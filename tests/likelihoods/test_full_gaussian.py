from __future__ import annotations

from typing import Any

import pytest
import scipy.stats
import torch

from credo.core.errors import DataError, SettingError
from credo.likelihoods import FullGaussian
from credo.likelihoods.mixtures import entropy_by_draws

COVARIANCE: Any = [[1.0, 0.6, 0.1], [0.6, 2.0, -0.3], [0.1, -0.3, 0.5]]


def test_covariance_is_kept():
    likelihood = FullGaussian(COVARIANCE)
    cholesky = likelihood.cholesky(torch.zeros(1, 3, dtype=torch.float64))
    torch.testing.assert_close(cholesky @ cholesky.T, torch.tensor(COVARIANCE, dtype=torch.float64))
    torch.testing.assert_close(
        likelihood.moments(torch.zeros(2, 3))[1], torch.tensor([1.0, 2.0, 0.5]).expand(2, 3)
    )
    assert likelihood.entropy(torch.zeros(1, 3).double()).item() == pytest.approx(
        scipy.stats.multivariate_normal([0, 0, 0], COVARIANCE).entropy()
    )


def test_expected_log_prob_in_closed_form():
    """tr(precision diag(var)) / 2 below the log density at the mean."""
    likelihood = FullGaussian(COVARIANCE)
    mean, var, y = (
        torch.zeros(1, 3).double(),
        torch.tensor([[0.1, 0.2, 0.3]]).double(),
        torch.ones(1, 3).double(),
    )
    precision = torch.linalg.inv(torch.tensor(COVARIANCE, dtype=torch.float64)).diagonal()
    expected = likelihood.log_prob(mean, y) - 0.5 * (var * precision).sum(-1)
    torch.testing.assert_close(likelihood.expected_log_prob(mean, var, y), expected)


def test_sample_covariance_by_z_test():
    """20000 draws; the variance of a product of normals is s_ii s_jj + s_ij^2.

    Nine z-tests of failure rate 6e-5.
    """
    n = 20000
    draws = FullGaussian(COVARIANCE).sample(torch.zeros(n, 1, 3).double(), 0)[:, 0]
    sigma = torch.tensor(COVARIANCE, dtype=torch.float64)
    spread = sigma.diagonal().outer(sigma.diagonal()) + sigma.square()
    assert ((draws.T @ draws / n - sigma) / (spread / n).sqrt()).abs().max() < 4.0


def test_learned_covariance_has_one_number_per_entry():
    likelihood = FullGaussian(num_outputs=3)
    assert [tuple(p.shape) for p in likelihood.parameters()] == [(6,)]
    likelihood.log_prob(
        torch.zeros(4, 3), torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    ).sum().backward()
    gradient = likelihood.get_parameter("tril").grad
    assert gradient is not None and bool((gradient != 0).all())


def test_mixture_entropy_of_one_draw_is_exact():
    likelihood = FullGaussian(COVARIANCE)
    f = torch.zeros(1, 2, 3).double()
    torch.testing.assert_close(entropy_by_draws(likelihood, f), likelihood.entropy(f)[0])


def test_bad_settings_and_targets():
    for bad in (
        [[1.0, 2.0], [2.0, 1.0]],
        [[1.0, 0.5], [0.0, 1.0]],
        [[1.0, 0.0]],
        [[1.0, 0.0], [0.0]],
        [[float("nan")]],
    ):
        with pytest.raises(SettingError, match="covariance="):
            FullGaussian(bad)
    with pytest.raises(SettingError, match="num_outputs=0"):
        FullGaussian(num_outputs=0)
    with pytest.raises(
        DataError, match=r"2 columns; expected 3: use FullGaussian\(num_outputs=2\)"
    ):
        FullGaussian(COVARIANCE).check_targets(torch.zeros(4, 2))
