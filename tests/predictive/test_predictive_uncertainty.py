from __future__ import annotations

import math

import pytest
import torch

from credo.likelihoods import (
    Bernoulli,
    Categorical,
    ContinuousBernoulli,
    FullGaussian,
    Gaussian,
    Heteroscedastic,
    Laplace,
    Pixels,
    Poisson,
    StudentT,
)
from credo.predictive.predictive import decompose, mutual_information

CASES = [
    (Categorical(), 3),
    (Bernoulli(), 1),
    (Bernoulli(), 3),
    (Poisson(), 1),
    (Poisson(), 2),
    (Pixels(4), 4),
    (Pixels(3), 6),
    (Gaussian(0.5), 1),
    (Gaussian(0.5), 2),
    (FullGaussian([[1.0, 0.3], [0.3, 0.5]]), 2),
    (Heteroscedastic(), 2),
    (Laplace(0.5), 1),
    (StudentT(4.0, 0.5), 1),
    (ContinuousBernoulli(), 2),
]


@pytest.mark.parametrize(("likelihood", "width"), CASES)
def test_parts_add_up_and_information_is_positive(likelihood, width):
    f = 2 * torch.randn(
        12, 9, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    total, aleatoric, epistemic = decompose(f, likelihood)
    torch.testing.assert_close(total, aleatoric + epistemic)
    assert total.shape == ((9,) if likelihood.discrete else (9, likelihood.target_dim(width)))
    assert bool((epistemic > 0).all())
    if likelihood.discrete:
        torch.testing.assert_close(total, likelihood.mixture_entropy(f))
    else:
        torch.testing.assert_close(total, likelihood.reported_variance(f))
    information = mutual_information(f, likelihood)
    assert information.shape == (9,)
    assert bool((information > 0).all()) and bool((information < math.log(12)).all())


@pytest.mark.parametrize(("likelihood", "width"), CASES)
def test_one_draw_knows_no_disagreement(likelihood, width):
    f = torch.randn(1, 4, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    zero = decompose(f, likelihood).epistemic
    assert bool((zero.abs() < 1e-12).all())
    assert bool((mutual_information(f, likelihood).abs() < 1e-7).all())


def test_categorical_by_hand():
    """Draws that are certain of different labels: all of log 2 is epistemic.

    Draws that are all undecided: none of it.
    """
    certain = torch.tensor([[[50.0, 0.0]], [[0.0, 50.0]]], dtype=torch.float64)
    undecided = torch.zeros(2, 1, 2, dtype=torch.float64)
    f = torch.cat([certain, undecided], 1)
    total, aleatoric, epistemic = decompose(f, Categorical())
    assert total.tolist() == pytest.approx([math.log(2)] * 2)
    assert aleatoric.tolist() == pytest.approx([0.0, math.log(2)], abs=1e-12)
    assert epistemic.tolist() == pytest.approx([math.log(2), 0.0], abs=1e-12)


@pytest.mark.parametrize("ratio", [0.1, 3.0])
def test_information_of_conjugate_regression(ratio):
    """f ~ N(0, v) and noise s^2 give 1/2 log(1 + v / s^2) nats; 40 replicates of 500 draws, z-test
    with failure rate 6e-5.

    A finite mixture is biased low by about (e^I - 1) / (2 S) <= 0.001, below the standard error.
    """
    noise = 0.4
    f = (
        noise
        * math.sqrt(ratio)
        * torch.randn(500, 40, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    )
    information = mutual_information(f, Gaussian(noise))
    error = information - 0.5 * math.log1p(ratio)
    assert (error.mean() / (error.std() / math.sqrt(40))).abs() < 4.0


def test_information_in_two_dimensions_adds_up():
    """Independent dimensions: the joint information is the sum; the joint one is Monte Carlo.

    z-test with failure rate 6e-5.
    """
    f = torch.randn(2, 16, 50, 1, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    pairs = torch.cat(
        [f[0].repeat_interleave(16, 0), f[1].repeat(16, 1, 1)], -1
    )  # every pair of draws: independent in the mixture
    alone = mutual_information(f[0], Gaussian(0.7)) + mutual_information(f[1], Gaussian(0.7))
    error = mutual_information(pairs, Gaussian(0.7)) - alone
    assert (error.mean() / (error.std() / math.sqrt(50))).abs() < 4.0
