"""Distances against closed forms, quadrature and scipy."""

import math

import pytest
import torch
from scipy.integrate import quad
from scipy.special import ndtr
from scipy.stats import norm, wasserstein_distance
from scipy.stats import poisson as counts

from credo.audit.cells import cells
from credo.audit.distances import DISTANCES, EDGES, wasserstein
from credo.likelihoods import Bernoulli, Categorical, Gaussian, Heteroscedastic, Poisson, StudentT
from credo.predictive import Predictive, evaluate


def rand(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def distances(first, second, likelihood, y=None, other=None):
    """All distances of outputs ``(S, N, F)`` from outputs ``(T, N, F)``."""
    kind = DISTANCES[likelihood.metric_family]
    one, two = Predictive(first, likelihood), Predictive(second, other or likelihood)
    edges = kind.edges(one, two)
    sides = [
        kind.draw_set(
            p, cells(p.num_samples, 1), edges, None if y is None else p.likelihood.check_targets(y)
        )
        for p in (one, two)
    ]
    return kind.distances(sides[0].subset(), sides[1].subset())


def constant(value):
    return torch.full((1, 1, 1), value, dtype=torch.float64)


def spread(value, shift=0.0):
    """Two draws, so that the reference has a unit."""
    return torch.tensor([[[shift - value]], [[shift + value]]], dtype=torch.float64)


# --- total variation ------------------------------------------------------------------------------

# Bins only merge, so the distance is never too large; where densities cross inside a bin it misses
# at most that bin's mass, which is about 1 / EDGES under either side.
SHORT = 1.0 / EDGES


def near(found, true):
    assert true - SHORT < found < true + 1e-9, (found, true)


@pytest.mark.parametrize("shift", [0.1, 1.0, 4.0, 50.0])
def test_two_shifted_normals(shift):
    found = distances(constant(shift), spread(1e-9), Gaussian(std=2.0))["total_variation"]
    near(found, 2.0 * ndtr(shift / 4.0) - 1.0)


def test_two_normals_of_different_width():
    found = distances(constant(0.0), spread(1e-9), Gaussian(std=1.0), other=Gaussian(std=3.0))[
        "total_variation"
    ]
    cross = math.sqrt(2.0 * math.log(3.0) / (1.0 - 1.0 / 9.0))
    near(found, (2.0 * norm.cdf(cross) - 1.0) - (2.0 * norm.cdf(cross / 3.0) - 1.0))


@pytest.mark.parametrize(
    "likelihood",
    [Gaussian(std=0.3), StudentT(df=3.0, scale=0.5), Heteroscedastic()],
    ids=lambda x: x.name,
)
def test_mixtures_of_any_continuous_likelihood(likelihood):
    width = likelihood.latents_per_target or 1
    first, second = rand(9, 1, width), 0.5 + 1.4 * rand(6, 1, width, seed=1)

    def gap(y):
        at = torch.tensor([[y]], dtype=torch.float64)
        p, q = (likelihood.mixture_log_prob(outputs, at).exp() for outputs in (first, second))
        return abs(float(p - q))

    true = 0.5 * sum(quad(gap, low, low + 1.0, limit=200)[0] for low in range(-20, 20))
    found = distances(first, second, likelihood)["total_variation"]
    assert (
        true - 3 * SHORT < found < true + 1e-3
    )  # a few crossings; the tails beyond 20 hold less than 1e-3


def test_counts():
    found = distances(
        constant(math.log(3.0)), constant(math.log(4.0)).expand(2, 1, 1) + spread(1e-9), Poisson()
    )["total_variation"]
    k = torch.arange(200).numpy()
    near(found, 0.5 * float(abs(counts.pmf(k, 3.0) - counts.pmf(k, 4.0)).sum()))


def test_labels_by_hand():
    logits = torch.tensor([[[2.0, 0.0, 0.0]]], dtype=torch.float64)
    other = torch.tensor([[[0.0, 1.0, 0.0]], [[0.0, 1.2, 0.0]]], dtype=torch.float64)
    found = distances(logits, other, Categorical())
    gap = logits.softmax(-1).mean(0) - other.softmax(-1).mean(0)
    assert (
        math.isclose(found["total_variation"], 0.5 * float(gap.abs().sum()))
        and found["agreement"] == 0.0
    )


def test_several_binary_labels_are_so_many_problems():
    first, second = rand(5, 4, 3), rand(7, 4, 3, seed=1)
    found = distances(first, second, Bernoulli())
    p, q = first.sigmoid().mean(0), second.sigmoid().mean(0)
    assert math.isclose(found["total_variation"], float((p - q).abs().mean()))
    assert math.isclose(found["agreement"], float(((p > 0.5) == (q > 0.5)).double().mean()))


# --- laws across draws ----------------------------------------------------------------------------


def test_shifted_draws_are_the_shift_apart():
    draws = rand(3, 50).sort(-1).values
    torch.testing.assert_close(
        wasserstein(draws + 2.5, draws), torch.full((3,), 2.5, dtype=torch.float64)
    )


@pytest.mark.parametrize(("n", "m"), [(1, 7), (40, 60), (33, 50), (8, 8)])
def test_unequal_numbers_of_draws_are_as_scipy_has_them(n, m):
    a, b = rand(2, n).sort(-1).values, 1.0 + 2.0 * rand(2, m, seed=1).sort(-1).values
    expected = [wasserstein_distance(p, q) for p, q in zip(a.numpy(), b.numpy(), strict=True)]
    torch.testing.assert_close(wasserstein(a, b), torch.tensor(expected, dtype=torch.float64))


def test_scaled_and_shifted_draws_of_values():
    base = rand(400, 6, 1)
    found = distances(3.0 * (base - base.mean(0)) + base.mean(0) + 0.5, base, Gaussian(std=1.0))
    assert math.isclose(found["sd_ratio"], 3.0, rel_tol=1e-9)
    assert math.isclose(
        found["mean_shift"], 0.5 / float(base.var(0, correction=0).mean().sqrt()), rel_tol=1e-9
    )
    shifted = distances(base + 0.5, base, Gaussian(std=1.0))
    assert math.isclose(
        shifted["wasserstein"], 0.5 / float(base.std(0, correction=0).mean()), rel_tol=1e-9
    )


def test_outputs_count_in_units_of_their_own():
    first, second = rand(30, 4, 2), rand(40, 4, 2, seed=1)
    scale = torch.tensor([1.0, 1000.0], dtype=torch.float64)
    plain, scaled = (
        distances(first * s, second * s, Gaussian(std=1.0))
        for s in (torch.ones(2, dtype=torch.float64), scale)
    )
    for key in ("wasserstein", "sd_ratio", "mean_shift"):
        assert math.isclose(plain[key], scaled[key], rel_tol=1e-9)


def test_a_shift_of_all_logits_changes_nothing():
    first, second = rand(30, 4, 3), rand(40, 4, 3, seed=1)
    plain = distances(first, second, Categorical())
    moved = distances(first + 5.0 * rand(30, 4, 1, seed=2), second, Categorical())
    assert all(math.isclose(plain[key], moved[key], rel_tol=1e-9) for key in plain)


def test_a_point_has_no_spread_and_still_distances():
    draws = rand(40, 4, 1)
    found = distances(draws.mean(0, keepdim=True), draws, Gaussian(std=1.0))
    assert found["sd_ratio"] == 0.0 and found["mean_shift"] < 1e-12 and found["wasserstein"] > 0.5


# --- scores ---------------------------------------------------------------------------------------


def test_scores_of_values_are_those_of_evaluate():
    first, second, y = rand(30, 200, 1), 0.3 * rand(50, 200, 1, seed=1), 1.5 * rand(200, 1, seed=2)
    likelihood = Gaussian(std=0.7)
    found = distances(first, second, likelihood, y)
    ours, theirs = (evaluate(Predictive(outputs, likelihood), y) for outputs in (first, second))
    assert math.isclose(found["nll_difference"], ours["nll"] - theirs["nll"], rel_tol=1e-9)
    assert math.isclose(
        found["calibration_difference"], ours["coverage_90"] - theirs["coverage_90"], abs_tol=1e-9
    )


def test_scores_of_counts_are_those_of_evaluate():
    first, second = 1.0 + rand(30, 200, 1), 1.0 + 0.1 * rand(50, 200, 1, seed=1)
    y = torch.poisson(
        torch.full((200,), 3.0, dtype=torch.float64), generator=torch.Generator().manual_seed(0)
    )
    found = distances(first, second, Poisson(), y)
    ours, theirs = (evaluate(Predictive(outputs, Poisson()), y) for outputs in (first, second))
    assert math.isclose(
        found["calibration_difference"], ours["coverage_90"] - theirs["coverage_90"], abs_tol=1e-9
    )


def test_scores_of_labels_are_those_of_evaluate():
    first, second = 2.0 * rand(30, 200, 3), rand(50, 200, 3, seed=1)
    y = torch.randint(0, 3, (200,), generator=torch.Generator().manual_seed(0))
    found = distances(first, second, Categorical(), y)
    ours, theirs = (evaluate(Predictive(outputs, Categorical()), y) for outputs in (first, second))
    assert math.isclose(found["nll_difference"], ours["nll"] - theirs["nll"], rel_tol=1e-9)
    assert math.isclose(found["calibration_difference"], ours["ece"] - theirs["ece"], abs_tol=1e-9)
