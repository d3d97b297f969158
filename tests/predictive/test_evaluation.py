from __future__ import annotations

import math

import pytest
import torch

from credo import metrics
from credo.core.errors import DataError
from credo.likelihoods import Bernoulli, Categorical, ContinuousBernoulli, Gaussian, Poisson
from credo.predictive import Predictive, evaluate


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_classification():
    p = Predictive(randn(10, 50, 3), Categorical())
    y = torch.arange(50) % 3
    scores = evaluate(p, y)
    assert list(scores) == ["nll", "accuracy", "ece", "brier", "entropy", "aleatoric", "epistemic"]
    assert scores["nll"] == pytest.approx(-p.log_prob(y).mean().item())
    assert scores["accuracy"] == pytest.approx((p.label == y).double().mean().item())
    assert scores["ece"] == pytest.approx(metrics.ece(p.mean, y).item())
    assert scores["entropy"] == pytest.approx(scores["aleatoric"] + scores["epistemic"])
    assert all(type(value) is float for value in scores.values())


@pytest.mark.parametrize("width", [1, 3])
def test_binary_labels_are_scored_as_two_classes(width):
    p = Predictive(randn(10, 20, width), Bernoulli())
    y = (randn(20, width, seed=1) > 0).double()
    scores = evaluate(p, y)
    assert scores["accuracy"] == pytest.approx(((p.mean > 0.5) == y.bool()).double().mean().item())
    assert scores["brier"] == pytest.approx(2 * (p.mean - y).square().mean().item())


def test_regression():
    """One draw with known noise: every score has a closed form.

    CRPS by z-test (failure rate 6e-5).
    """
    n, std = 1500, 0.5
    f, y = randn(1, n, 1), randn(n, seed=1)
    scores = evaluate(Predictive(f, Gaussian(std)), y)
    assert list(scores) == ["nll", "rmse", "crps", "coverage_90", "std"]
    gap = y - f[0, :, 0]
    assert scores["rmse"] == pytest.approx(gap.square().mean().sqrt().item())
    assert scores["std"] == pytest.approx(std)
    assert scores["nll"] == pytest.approx(
        (0.5 * (gap / std).square() + math.log(std) + 0.5 * math.log(2 * math.pi)).mean().item()
    )
    assert scores["coverage_90"] == pytest.approx(
        (gap.abs() <= 1.6448536269514722 * std).double().mean().item()
    )
    z = gap / std
    density, mass = torch.exp(-0.5 * z**2) / math.sqrt(2 * math.pi), torch.special.ndtr(z)
    crps = std * (z * (2 * mass - 1) + 2 * density - 1 / math.sqrt(math.pi))
    # The sampled score of one datum has a deviation below that of |X - y|, at most std, over
    # sqrt(1000).
    assert abs(scores["crps"] - crps.mean().item()) < 4 * std / math.sqrt(1000 * n)


@pytest.mark.parametrize("likelihood", [Poisson(), ContinuousBernoulli()])
@pytest.mark.parametrize("width", [1, 2])
def test_other_values(likelihood, width):
    f = randn(5, 30, width)
    y = likelihood.sample(f[0], 0)
    scores = evaluate(Predictive(f, likelihood), y)
    assert all(math.isfinite(value) for value in scores.values())
    assert scores["coverage_90"] > 0.5


def test_bad_targets():
    with pytest.raises(DataError, match="29 targets for 30 predictions"):
        evaluate(Predictive(randn(5, 30, 1), Gaussian()), torch.zeros(29))
