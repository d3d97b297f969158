from __future__ import annotations

import math

import pytest
import torch

from credo import metrics
from credo.core.errors import DataError


def test_nll_rmse_coverage_by_hand():
    assert metrics.nll(torch.tensor([-1.0, -3.0])).item() == 2.0
    assert metrics.rmse(
        torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0], [4.0]])
    ).item() == pytest.approx(math.sqrt(2))
    low, high, y = (
        torch.tensor([0.0, 0.0, 0.0]),
        torch.tensor([1.0, 1.0, 1.0]),
        torch.tensor([0.0, 0.5, 2.0]),
    )
    assert metrics.coverage(low, high, y).item() == pytest.approx(2 / 3)


def test_crps_equals_the_pairwise_form():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(7, 3, 2, generator=generator, dtype=torch.float64)
    y = torch.randn(3, 2, generator=generator, dtype=torch.float64)
    pairs = (x[:, None] - x[None]).abs().sum((0, 1)) / (7 * 6)
    expected = ((x - y).abs().mean(0) - 0.5 * pairs).mean()
    assert metrics.crps(x, y).item() == pytest.approx(expected.item())


def test_crps_of_a_gaussian_is_unbiased():
    """4000 sets of 5 samples against the closed form at y = 0.3; z-test with failure rate 6e-5."""
    y = 0.3
    x = torch.randn(5, 4000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    scores = torch.stack(
        [metrics.crps(x[:, i : i + 1], torch.tensor([y], dtype=torch.float64)) for i in range(4000)]
    )
    density, mass = (
        math.exp(-0.5 * y * y) / math.sqrt(2 * math.pi),
        0.5 * math.erfc(-y / math.sqrt(2)),
    )
    exact = y * (2 * mass - 1) + 2 * density - 1 / math.sqrt(math.pi)
    assert ((scores.mean() - exact) / (scores.std() / math.sqrt(4000))).abs() < 4.0


def test_shapes_never_broadcast():
    with pytest.raises(DataError, match=r"\(3,\) and \(3, 1\)"):
        metrics.rmse(torch.zeros(3), torch.zeros(3, 1))
    with pytest.raises(DataError, match="at least two"):
        metrics.crps(torch.zeros(1, 3), torch.zeros(3))
    with pytest.raises(DataError, match="one sample and targets"):
        metrics.crps(torch.zeros(4, 3), torch.zeros(3, 1))
    with pytest.raises(DataError, match="upper ends"):
        metrics.coverage(torch.zeros(3), torch.zeros(2), torch.zeros(3))
    with pytest.raises(DataError, match="at least one"):
        metrics.nll(torch.zeros(0))
