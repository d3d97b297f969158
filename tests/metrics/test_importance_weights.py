from __future__ import annotations

import math

import pytest
import torch
from zoo.stats import Z, has_mean

from credo.core.errors import DataError, SettingError
from credo.metrics import importance

INF = math.inf


def uniform(*shape: int, seed: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("k", [0.1, 0.5, 0.7, 1.5])
def test_pareto_weights_of_known_shape(k):
    """w = u^-k has the exact tail P(w > t) = t^(-1/k).

    The average of 100 fits against the shrunken truth (M k + 5) / (M + 10),

    at Z standard errors (failure rate 5.7e-7), plus 1/M: the bias of a fit of two parameters to M
    draws.
    """
    size, tail = 4000, math.ceil(3 * math.sqrt(4000))
    fits = torch.tensor([importance.pareto_k(-k * row.log()) for row in uniform(100, size, seed=1)])
    expected = (tail * k + 5.0) / (tail + 10.0)
    assert abs(fits.mean() - expected) < Z * fits.std() / 10.0 + 1.0 / tail
    # One fit spreads by (1 + k) / sqrt(M), as for the maximum of the likelihood; 30 % covers 100
    # fits, prior and finite M.
    assert fits.std().item() == pytest.approx((1.0 + k) / math.sqrt(tail), rel=0.3)


def test_bounded_weights_have_negative_shape():
    """w uniform is a tail with k = -1, shrunk towards 1/2 by the prior."""
    assert -1.3 < importance.pareto_k(uniform(4000, seed=2).log()) < -0.5


def test_shape_ignores_scale_order_and_precision():
    log_weights = normal(500, seed=3)
    k = importance.pareto_k(log_weights)
    assert math.isfinite(k)
    for other in (
        log_weights + 1e4,
        log_weights - 1e4,
        log_weights.flip(0),
        torch.cat([log_weights, torch.empty(0)]),
    ):
        assert importance.pareto_k(other) == pytest.approx(k, rel=1e-6)
    assert importance.pareto_k(log_weights.float()) == pytest.approx(k, abs=1e-4)
    assert importance.pareto_k((1000 * log_weights).long()) > 1.0


def test_smoothing_keeps_order_and_body():
    raw = 1.5 * normal(1000, seed=4)
    before = raw.clone()
    smoothed, k = importance.smooth(raw)
    assert torch.equal(raw, before) and k == importance.pareto_k(raw)
    assert smoothed.logsumexp(0).item() == pytest.approx(0.0, abs=1e-12)
    assert torch.equal(smoothed.argsort(), raw.argsort())
    body = raw.argsort()[: 1000 - math.ceil(3 * math.sqrt(1000))]
    shift = smoothed[body] - raw[body]
    assert (shift - shift[0]).abs().max() < 1e-12
    assert (smoothed - shift[0]).max() <= raw.max() + 1e-12


def test_smoothing_steadies_the_estimate():
    """E w = 1 / (1 - k) for w = u^-k with k = 0.7 (no variance): smoothing makes gross errors of
    the mean weight rare.

    Errors above a quarter of the truth are near 5.5 % without and 0.6 % with smoothing: over 2000
    replicates a paired difference of 10 standard errors, which falls below Z = 5 with probability
    2.9e-7. (Errors themselves have no variance to test with.)
    """
    k, truth = 0.7, 1.0 / 0.3
    gain = []
    for row in uniform(2000, 1000, seed=5):
        raw = -k * row.log()
        smoothed, _ = importance.smooth(raw)
        # The smallest weight is far below the tail, so it gives back the unnormalised scale.
        back = (smoothed + (raw - smoothed)[raw.argmin()]).exp().mean()
        gross = [abs(float(estimate) - truth) > truth / 4 for estimate in (raw.exp().mean(), back)]
        gain.append(float(gross[0]) - float(gross[1]))
    gain = torch.tensor(gain)
    assert gain.mean() > Z * gain.std() / math.sqrt(len(gain))


def test_no_tail_to_fit():
    nothing_known = (
        normal(20, seed=6),  # S < 21: a tail of 4
        torch.zeros(1),
        torch.cat([torch.zeros(1), torch.full((999,), -1e4)]),  # one weight has it all
        torch.cat([normal(3, seed=7), torch.full((97,), -INF)]),
    )
    for log_weights in nothing_known:
        smoothed, k = importance.smooth(log_weights)
        assert k == INF == importance.pareto_k(log_weights)
        torch.testing.assert_close(smoothed, log_weights.double().log_softmax(0))
    for equal in (
        torch.full((100,), 3.7),
        torch.cat([torch.zeros(500), normal(500, seed=8) - 100.0]),
    ):
        smoothed, k = importance.smooth(equal)
        assert k == -INF
        torch.testing.assert_close(smoothed, equal.double().log_softmax(0))
    assert math.isfinite(importance.pareto_k(normal(21, seed=6)))


def test_zero_weights_stay_zero():
    log_weights = normal(400, seed=9)
    log_weights[::2] = -INF
    smoothed, k = importance.smooth(log_weights)
    assert math.isfinite(k) and (smoothed[::2] == -INF).all() and smoothed[1::2].isfinite().all()
    sparse = torch.full((400,), -INF, dtype=torch.float64)
    sparse[:10] = normal(10, seed=9)  # the threshold itself is a weight of zero
    smoothed, k = importance.smooth(sparse)
    assert (
        math.isfinite(k)
        and smoothed[:10].isfinite().all()
        and smoothed.exp().sum().item() == pytest.approx(1.0)
    )


def test_effective_number():
    assert importance.effective(torch.full((7,), -900.0)) == pytest.approx(7.0)
    assert importance.effective(torch.tensor([0.0, -1e5, -INF])) == pytest.approx(1.0)
    weights = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
    assert importance.effective(weights.log() + 800.0) == pytest.approx(1.0 / (0.25 + 2 * 0.0625))
    assert importance.effective(torch.tensor([0, 0])) == pytest.approx(2.0)


@pytest.mark.parametrize("function", [importance.pareto_k, importance.smooth, importance.effective])
def test_what_is_no_weight_is_refused(function):
    for bad, message in (
        (torch.tensor([0.0, math.nan, math.nan]), "2 of them NaN and 0 \\+inf"),
        (torch.tensor([0.0, INF]), "0 of them NaN and 1 \\+inf"),
        (torch.tensor([-INF, -INF]), "not all -inf"),
        (torch.zeros(0), r"shape \(0,\)"),
        (torch.zeros(2, 2), r"shape \(2, 2\)"),
    ):
        with pytest.raises(DataError, match=message):
            function(bad)


def test_systematic_counts():
    """Every index comes up floor or ceil of count p_s times, zero weights never, and the counts
    average to count p_s at Z.
    """
    weights = torch.tensor([0.0, 3.0, 0.5, 0.0, 1.25, 7.0, 0.0])
    share = weights.double() / weights.double().sum()
    generator = torch.Generator().manual_seed(0)
    counts = []
    for _ in range(2000):
        index = importance.systematic(weights, 10, generator)
        assert index.dtype == torch.int64 and index.shape == (10,) and (index.diff() >= 0).all()
        counts.append(index.bincount(minlength=7))
    counts = torch.stack(counts).double()
    assert ((counts - 10 * share).abs() < 1.0).all() and (counts[:, weights == 0] == 0).all()
    has_mean(counts, 10 * share)


def test_systematic_edges():
    generator = torch.Generator().manual_seed(1)
    assert importance.systematic(torch.ones(5), 5, generator).tolist() == [0, 1, 2, 3, 4]
    assert importance.systematic(
        torch.tensor([0.0, 1e308, 0.0], dtype=torch.float64), 3, generator
    ).tolist() == [1, 1, 1]
    assert importance.systematic(
        torch.tensor([1e308, 1e308], dtype=torch.float64), 2, generator
    ).tolist() == [0, 1]
    assert importance.systematic(torch.tensor([0, 2, 0]), 4, generator).tolist() == [1] * 4
    many = importance.systematic(torch.tensor([0.1] * 10 + [0.0]), 100_001, generator)
    assert int(many.max()) == 9 and int(many.bincount().max()) <= 10_001
    weights = uniform(50, seed=12)
    first, second, third = (
        importance.systematic(weights, 7, torch.Generator().manual_seed(seed)) for seed in (3, 3, 4)
    )
    assert torch.equal(first, second) and not torch.equal(first, third)
    for bad in (
        torch.tensor([1.0, -1.0]),
        torch.tensor([1.0, math.nan]),
        torch.tensor([INF, 1.0]),
        torch.zeros(3),
        torch.ones(2, 2),
    ):
        with pytest.raises(DataError, match="finite numbers from 0 with one above 0"):
            importance.systematic(bad, 3, generator)
    for bad in (0, 2.5, True):
        with pytest.raises(SettingError, match="count="):
            importance.systematic(torch.ones(3), bad, generator)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("size", [21, 30, 225, 226, 1000])
@pytest.mark.parametrize("scale", [1e-3, 0.3, 1.0, 5.0, 50.0])
def test_against_arviz(size, scale):
    arviz = pytest.importorskip("arviz")
    log_weights = scale * normal(size, seed=size)
    smoothed, k = importance.smooth(log_weights)
    expected, expected_k = arviz.psislw(log_weights.numpy())
    assert k == pytest.approx(float(expected_k), rel=1e-6)
    torch.testing.assert_close(smoothed, torch.as_tensor(expected.copy()), rtol=1e-6, atol=1e-9)
