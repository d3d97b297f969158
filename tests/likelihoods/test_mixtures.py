from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import torch
from torch.distributions import Laplace, Normal, StudentT

from credo.core.errors import SettingError
from credo.likelihoods import Gaussian
from credo.likelihoods.mixtures import (
    bracket,
    entropy_by_draws,
    invert,
    make_generator,
    over_data,
    panel_entropy,
)

INFINITE = (-math.inf, math.inf)


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64).reshape(-1, 1, 1)


def test_panel_entropy_against_a_dense_sum():
    """Components of deviations from 0.05 to 3, against a sum over two million points (error of
    order step^2).
    """
    mean, std = column(-2.0, 0.0, 0.1, 5.0), column(0.3, 0.05, 3.0, 1.0)
    y = np.linspace(-40, 40, 2_000_001)
    p = np.mean(
        [scipy.stats.norm.pdf(y, m, s) for m, s in zip(mean.ravel(), std.ravel(), strict=True)], 0
    )
    expected = scipy.special.entr(p).sum() * (y[1] - y[0])
    value = panel_entropy(Normal(mean, std), mean, std, *INFINITE)
    assert value.shape == (1, 1)
    assert value.item() == pytest.approx(expected, abs=1e-7)


def test_panel_entropy_with_many_components():
    """100 components thin the knots; the exact value is that of a dense sum."""
    mean = torch.randn(100, 1, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    std = torch.full_like(mean, 0.1)
    y = np.linspace(-8, 8, 200_001)
    p = np.mean(scipy.stats.norm.pdf(y, mean.reshape(-1, 1).numpy(), 0.1), 0)
    expected = scipy.special.entr(p).sum() * (y[1] - y[0])
    # Thinned panels are up to three deviations wide at the edges of the cloud, where eight nodes
    # give five digits.
    assert panel_entropy(Normal(mean, std), mean, std, *INFINITE).item() == pytest.approx(
        expected, abs=1e-5
    )


@pytest.mark.parametrize("df", [2.1, 3.0, 40.0])
def test_panel_entropy_of_heavy_tails(df):
    mean, nu = column(0.0), column(df)
    law = StudentT(nu, mean, torch.ones_like(mean))
    std = (nu / (nu - 2)).sqrt()
    # The mass beyond the outermost knot, 8000 deviations, is below 1e-7.
    assert panel_entropy(law, mean, std, *INFINITE).item() == pytest.approx(
        law.entropy().item(), abs=1e-5
    )


def test_panel_entropy_at_a_kink():
    mean = column(1.5)
    law = Laplace(mean, torch.ones_like(mean))
    value = panel_entropy(law, mean, law.stddev, *INFINITE)
    assert value.item() == pytest.approx(1 + math.log(2), abs=1e-9)


def test_entropy_by_draws_agrees_with_quadrature():
    """200 data with independent errors: a z-test with failure rate 6e-5."""
    f = torch.randn(20, 200, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    error = entropy_by_draws(Gaussian(0.5), f) - Gaussian(0.5).mixture_entropy(f)
    assert (error.mean() / (error.std() / math.sqrt(200))).abs() < 4.0


def test_bracket_holds_the_quantile_of_skewed_laws():
    law = scipy.stats.lognorm(1.5)
    moments = (torch.tensor(float(v), dtype=torch.float64) for v in law.stats("mv"))
    mean, variance = moments
    for q in (1e-4, 0.1, 0.5, 0.9, 0.9999):
        low, high = bracket(mean, variance, q)
        assert low <= law.ppf(q) <= high
    for q in (0.0, 1.0, float("nan")):
        with pytest.raises(SettingError, match="strictly between 0 and 1"):
            bracket(mean, variance, q)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_invert_uses_all_digits_in_few_steps(dtype):
    low, high = torch.tensor([-20.0], dtype=dtype), torch.tensor([30.0], dtype=dtype)
    calls = []

    def cdf(y: torch.Tensor) -> torch.Tensor:
        calls.append(y)
        return torch.special.ndtr(y)

    root = invert(cdf, low, high, 0.8)
    # Rounding of the cdf, eps, over the density 0.28, and the tolerance of two eps of the larger
    # end.
    assert root.item() == pytest.approx(scipy.stats.norm.ppf(0.8), abs=64 * torch.finfo(dtype).eps)
    assert len(calls) < 20


def test_invert_never_takes_more_than_bisection_does():
    """A cdf with a long flat part and a jump, where secants are useless."""
    calls = []

    def cdf(y: torch.Tensor) -> torch.Tensor:
        calls.append(y)
        return torch.where(y < 0.123, 0.1 + 1e-9 * y, 0.9 + 1e-9 * y)

    low, high = torch.tensor([-1e3], dtype=torch.float64), torch.tensor([1e3], dtype=torch.float64)
    assert invert(cdf, low, high, 0.5).item() == pytest.approx(0.123, abs=1e-12)
    assert len(calls) < 60  # log2(2e3 / 1e-12) = 51 halvings, one extra, and the two ends


def test_over_data_joins_slices(monkeypatch):
    monkeypatch.setattr("credo.likelihoods.mixtures.ELEMENTS", 8)
    sizes = []

    def total(part: torch.Tensor) -> torch.Tensor:
        sizes.append(part.shape[-2])
        return part.sum(0)

    f = torch.arange(30.0).reshape(2, 5, 3)
    assert torch.equal(over_data(total, f, 1, -2), f.sum(0))
    assert sizes == [1, 1, 1, 1, 1]


def test_make_generator():
    generator = torch.Generator()
    assert make_generator(torch.zeros(1), generator) is generator
    same, other = (make_generator(torch.zeros(1), 5) for _ in range(2))
    assert same.initial_seed() == other.initial_seed() != 5
