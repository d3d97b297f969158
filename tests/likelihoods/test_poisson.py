from __future__ import annotations

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch

from credo.core.errors import DataError
from credo.likelihoods import Poisson


@pytest.mark.parametrize("rate", [0.01, 3.0, 80.0, 1234.0, 2e5])
def test_entropy_for_small_and_large_rates(rate):
    """Large rates take every h-th count; the reference sums them all."""
    value = Poisson().entropy(torch.tensor([[rate]], dtype=torch.float64).log())
    k = np.arange(max(0, int(rate - 15 * rate**0.5)), int(rate + 15 * rate**0.5) + 40)
    # log k! near k = 2e5 is 2e6, so single log probabilities carry an error of 1e-9.
    assert value.item() == pytest.approx(
        scipy.special.entr(scipy.stats.poisson.pmf(k, rate)).sum(), abs=1e-8
    )


def test_mixture_entropy_over_far_rates():
    f = torch.tensor([[[0.0]], [[8.0]]], dtype=torch.float64)
    parts = Poisson().entropy(f).mean()
    torch.testing.assert_close(
        Poisson().mixture_entropy(f),
        parts + torch.full((1,), 2.0).double().log(),
        rtol=0,
        atol=1e-9,
    )


@pytest.mark.parametrize("q", [0.01, 0.5, 0.9, 0.999])
def test_quantile_is_the_smallest_count_with_enough_mass(q):
    f = torch.randn(5, 6, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2
    k = Poisson().mixture_quantile(f, q)
    assert k.shape == (6, 2) and bool((k == k.floor()).all()) and bool((k >= 0).all())
    assert bool((Poisson().mixture_cdf(f, k) >= q).all())
    assert bool((Poisson().mixture_cdf(f, k - 1) < q).all())
    single = Poisson().mixture_quantile(f[:1], q)
    assert single.tolist() == scipy.stats.poisson.ppf(q, f[0].exp().numpy()).tolist()


def test_cdf_is_a_step_function():
    f = torch.zeros(1, 3, 1, dtype=torch.float64)
    cdf = Poisson().mixture_cdf(f, torch.tensor([-0.5, 2.0, 2.9]))
    assert cdf.flatten().tolist() == pytest.approx([0.0] + 2 * [scipy.stats.poisson.cdf(2, 1.0)])


def test_sample_variance_exceeds_the_mean_in_a_mixture():
    mean, aleatoric, epistemic = Poisson().mixture_moments(torch.tensor([[[0.0]], [[2.0]]]))
    torch.testing.assert_close(aleatoric, mean)
    assert epistemic.item() > 0


def test_targets():
    assert Poisson().check_targets(torch.tensor([[1], [3]])).shape == (2,)
    for bad in (-1.0, 0.5):
        with pytest.raises(DataError, match="expected a count"):
            Poisson().check_targets(torch.tensor([1.0, bad]))
