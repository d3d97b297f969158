from __future__ import annotations

import math

import pytest
import torch

from credo.core.errors import DataError
from credo.likelihoods import Gaussian
from credo.likelihoods.continuous_likelihood import ContinuousLikelihood


def test_is_abstract():
    with pytest.raises(TypeError, match="abstract"):
        ContinuousLikelihood()  # type: ignore[abstract]


def test_uncertainty_is_the_law_of_total_variance():
    f = torch.tensor([[[0.0]], [[2.0]]], dtype=torch.float64)
    aleatoric, epistemic = Gaussian(0.5).uncertainty(f)
    assert aleatoric.item() == pytest.approx(0.25) and epistemic.item() == pytest.approx(1.0)
    assert Gaussian(0.5).reported_variance(f).item() == pytest.approx(1.25)


def test_entropy_of_two_far_components_adds_log_two():
    f = torch.tensor([[[-50.0]], [[50.0]]], dtype=torch.float64)
    expected = 0.5 * math.log(2 * math.pi * math.e * 0.01) + math.log(2)
    assert Gaussian(0.1).mixture_entropy(f).item() == pytest.approx(expected, abs=1e-8)


def test_quantile_of_a_symmetric_mixture():
    f = torch.tensor([[[-1.0]], [[1.0]]], dtype=torch.float64)
    assert Gaussian(0.3).mixture_quantile(f, 0.5).abs().item() < 1e-6


def test_large_sets_are_cut_into_slices(monkeypatch):
    f = torch.randn(3, 40, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    whole = Gaussian().mixture_entropy(f)
    monkeypatch.setattr("credo.likelihoods.mixtures.ELEMENTS", 10000)
    torch.testing.assert_close(Gaussian().mixture_entropy(f), whole)
    torch.testing.assert_close(super(Gaussian, Gaussian()).entropy(f), Gaussian().entropy(f))


def test_targets_become_columns():
    assert Gaussian().check_targets(torch.arange(3)).shape == (3, 1)
    assert Gaussian().check_targets(torch.zeros(3, 2, dtype=torch.float64)).dtype == torch.float64
    with pytest.raises(DataError, match="in column 1 are 2"):
        Gaussian().check_training_targets(torch.tensor([[0.0, 2.0], [1.0, 2.0]]))
