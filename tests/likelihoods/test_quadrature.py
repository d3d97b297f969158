from __future__ import annotations

import pytest
import torch

from credo.likelihoods.quadrature import SOBOL_POINTS, hermite, legendre, normal_nodes


def test_hermite_moments():
    x, w = hermite(10)
    moments = [(w * x**k).sum().item() for k in range(7)]
    assert moments == pytest.approx([1, 0, 1, 0, 3, 0, 15], abs=1e-10)


def test_legendre_moments():
    x, w = legendre(6)
    assert [(w * x**k).sum().item() for k in range(8)] == pytest.approx(
        [1 / (k + 1) for k in range(8)], abs=1e-12
    )


@pytest.mark.parametrize(("outputs", "latents"), [(1, None), (2, None), (5, None), (3, 1), (4, 2)])
def test_normal_nodes_have_mean_zero_and_unit_variance(outputs, latents):
    points, weights = normal_nodes(outputs, latents)
    assert points.shape == (len(weights), outputs)
    assert weights.sum().item() == pytest.approx(1.0)
    torch.testing.assert_close(weights @ points, torch.zeros(outputs).double(), rtol=0, atol=1e-10)
    # Gauss-Hermite is exact; Sobol points must beat the standard error of plain draws, sqrt(2 / K).
    tolerance = 1e-9 if latents or outputs <= 2 else (2 / (2 * SOBOL_POINTS)) ** 0.5
    torch.testing.assert_close(
        weights @ points**2, torch.ones(outputs).double(), rtol=0, atol=tolerance
    )


def test_pairs_of_latents_are_independent():
    points, weights = normal_nodes(4, 2)
    product = (weights * points[:, 0] * points[:, 2]).sum()
    assert product.abs().item() < 1e-12
    assert torch.equal(points[:, 0], points[:, 1]) and torch.equal(points[:, 2], points[:, 3])


def test_global_rng_untouched():
    before = torch.get_rng_state()
    normal_nodes.cache_clear()
    normal_nodes(6, None)
    assert torch.equal(before, torch.get_rng_state())
