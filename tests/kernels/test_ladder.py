import math

import pytest
import torch
from zoo.stats import Z, has_mean, has_variance

from credo.kernels.ladder import Ladder, geometric, respace, step_per_chain, swap

DOUBLE = torch.float64
CHAINS = 40_000


def seed(n=0):
    return torch.Generator().manual_seed(n)


def test_geometric_powers():
    powers = geometric(5, 0.01, torch.zeros(1))
    assert powers.dtype == DOUBLE and powers[0] == 1.0 and math.isclose(float(powers[-1]), 0.01)
    assert torch.allclose(powers[1:] / powers[:-1], torch.full((4,), 0.01**0.25, dtype=DOUBLE))
    assert geometric(1, 0.01, powers).tolist() == [1.0] and geometric(2, 0.5, powers).tolist() == [
        1.0,
        0.5,
    ]
    assert geometric(3, 1.0, powers).tolist() == [1.0, 1.0, 1.0]


# --- respacing ------------------------------------------------------------------------------------

BARRIERS = {
    "root": lambda b: 0.9 * b.sqrt(),
    "steep below": lambda b: 0.3 * (1 - (-b / 0.02).exp()) + 0.3 * b,
    "steep above": lambda b: 0.8 * b**6,
    "straight": lambda b: 0.9 * b,
}


def rejections(powers, barrier):
    return -barrier(powers).diff()


@pytest.mark.parametrize("kind", BARRIERS)
def test_respacing_makes_rejections_equal(kind):
    barrier = BARRIERS[kind]
    powers = start = geometric(8, 0.01, torch.zeros(1))
    uneven = rejections(powers, barrier)
    for _ in range(30):
        powers = respace(powers, rejections(powers, barrier))
        assert powers[0] == start[0] and powers[-1] == start[-1] and (powers.diff() < 0).all()
    even = rejections(powers, barrier)
    # up to the floor of 1e-3 that keeps a pair that is never rejected from losing its place
    assert (
        float((even / even.mean() - 1).abs().max())
        < 0.02
        < float((uneven / uneven.mean() - 1).abs().max())
    )


def test_one_respacing_already_helps():
    powers = geometric(8, 0.01, torch.zeros(1))
    before, after = (
        rejections(p, BARRIERS["root"])
        for p in (powers, respace(powers, rejections(powers, BARRIERS["root"])))
    )
    assert float(after.std()) < 0.5 * float(before.std())


def test_an_even_ladder_stays():
    powers = torch.tensor([1.0, 0.5, 0.2, 0.05], dtype=DOUBLE)
    for rate in (0.0, 0.3, 1.0):
        assert torch.allclose(respace(powers, torch.full((3,), rate, dtype=DOUBLE)), powers)


def test_a_pair_that_is_always_rejected_draws_the_rungs_in():
    powers = torch.tensor([1.0, 0.5, 0.2, 0.05], dtype=DOUBLE)
    moved = respace(powers, torch.tensor([0.0, 1.0, 0.0], dtype=DOUBLE))
    assert 0.2 < float(moved[2]) < float(moved[1]) < 0.5 and moved[[0, 3]].tolist() == [1.0, 0.05]


def test_two_rungs_have_nothing_to_respace():
    powers = torch.tensor([1.0, 0.1], dtype=DOUBLE)
    assert torch.equal(respace(powers, torch.tensor([0.7], dtype=DOUBLE)), powers)


# --- swaps ----------------------------------------------------------------------------------------


def rungs(powers, curvature=6.0, n=CHAINS, number=0):
    """Exact draws of w ~ N(0, 1) with likelihood exp(-a w^2 / 2), rung by rung: variance 1 / (1 + a
    b). And their log-likelihoods.
    """
    std = (1 + curvature * powers).rsqrt()
    w = std.unsqueeze(1) * torch.randn(len(powers), n, generator=seed(number), dtype=DOUBLE)
    return w, -0.5 * curvature * w.square(), std.square()


@pytest.mark.parametrize("turn", [0, 1])
@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_swaps_are_a_permutation_of_every_chain(count, turn):
    powers = geometric(count, 0.05, torch.zeros(1))
    w, fits, _ = rungs(powers, n=500)
    origin, rates = swap(powers, fits, turn, seed())
    assert origin.shape == (count, 500) and rates.shape == (count - 1, 500)
    assert torch.equal(origin.sort(0).values, torch.arange(count).unsqueeze(1).expand(count, 500))
    assert int((origin - torch.arange(count).unsqueeze(1)).abs().max()) <= 1  # only neighbours
    tried = torch.zeros(count - 1, dtype=torch.bool)
    tried[turn::2] = True
    assert torch.equal(~rates.isnan(), tried.unsqueeze(1).expand_as(rates))
    assert (
        float(rates[tried].min() if tried.any() else 0.0) >= 0
        and float(rates[tried].max() if tried.any() else 1.0) <= 1
    )
    moved = origin != torch.arange(count).unsqueeze(1)
    for low in range(count - 1):
        if not tried[low]:
            continue
        assert torch.equal(moved[low], moved[low + 1])
        assert abs(float(moved[low].double().mean() - rates[low].mean())) < Z * 0.5 / math.sqrt(500)


def test_swaps_keep_the_joint_law():
    """Variances of every rung, and no correlation between the squares of neighbours: exact draws
    stay exact, by z-test.
    """
    powers = torch.tensor([1.0, 0.4, 0.1], dtype=DOUBLE)
    w, _, variance = rungs(powers)
    for turn in range(4):
        origin, _ = swap(powers, -3.0 * w.square(), turn, seed(turn))
        assert (origin != torch.arange(3).unsqueeze(1)).any()
        w = w.gather(0, origin)
    has_variance(w.T, variance)
    squares = w.square() - variance.unsqueeze(1)
    has_mean(
        torch.stack(
            [
                squares[0] * squares[1],
                squares[1] * squares[2],
                squares[0] * squares[2],
                w[0] * w[1],
            ],
            1,
        ),
        torch.zeros(4),
    )


@pytest.mark.parametrize("wrong", ["always", "reversed"])
def test_swaps_by_another_rule_fail_the_same_test(wrong):
    powers = torch.tensor([1.0, 0.4], dtype=DOUBLE)
    w, fits, variance = rungs(powers)
    origin, _ = swap(powers, fits * (0.0 if wrong == "always" else -1.0), 0, seed())
    with pytest.raises(AssertionError, match="variance"):
        has_variance(w.gather(0, origin).T, variance)


def test_densities_that_are_zero_or_unknown():
    """A rung without likelihood takes any place that has some; what is no number stays."""
    powers = torch.tensor([1.0, 0.5], dtype=DOUBLE)
    inf, nan = math.inf, math.nan
    fits = torch.tensor([[-inf, 0.0, -inf, nan, 0.0], [0.0, -inf, -inf, 0.0, nan]], dtype=DOUBLE)
    origin, rates = swap(powers, fits, 0, seed())
    assert origin[0].tolist() == [1, 0, 0, 0, 0] and rates[0].tolist() == [1.0, 0.0, 0.0, 0.0, 0.0]


def test_one_rung_has_no_one_to_swap_with():
    origin, rates = swap(torch.ones(1, dtype=DOUBLE), torch.zeros(1, 3, dtype=DOUBLE), 0, seed())
    assert origin.tolist() == [[0, 0, 0]] and rates.shape == (0, 3)


def test_a_ladder_is_respaced_by_the_mean_rejection_of_its_rounds():
    ladder = Ladder.start(3, 0.1, torch.zeros(1, dtype=DOUBLE))
    nan = torch.nan
    rounds = [[[0.2, 0.4], [nan, nan]], [[nan, nan], [0.9, 0.7]], [[0.6, 0.8], [nan, nan]]]
    for rates in rounds:
        ladder = ladder.observe(torch.tensor(rates, dtype=DOUBLE))
    again = ladder.respaced()
    wanted = respace(ladder.powers, torch.tensor([0.5, 0.2], dtype=DOUBLE))
    assert torch.allclose(again.powers, wanted) and not again.rejected.any()
    assert torch.equal(ladder.powers, geometric(3, 0.1, ladder.powers))


def test_a_pair_that_was_not_tried_has_its_last_rate_still():
    ladder = Ladder.start(3, 0.1, torch.zeros(1, dtype=DOUBLE))
    assert ladder.swapped.isnan().all()
    ladder = ladder.with_rates(torch.tensor([[0.2, 0.4], [torch.nan] * 2], dtype=DOUBLE))
    ladder = ladder.with_rates(torch.tensor([[torch.nan] * 2, [0.8, 0.8]], dtype=DOUBLE))
    assert torch.allclose(ladder.swapped, torch.tensor([0.3, 0.8], dtype=DOUBLE))


def test_one_rung_has_no_swaps():
    ladder = Ladder.start(1, 0.1, torch.zeros(1, dtype=DOUBLE))
    none = torch.zeros(0, 4, dtype=DOUBLE)
    assert torch.equal(ladder.observe(none).rejected, ladder.rejected)
    assert ladder.with_rates(none).swapped.shape == (0,)


def test_steps_are_their_rungs_jittered_chain_by_chain():
    step = torch.tensor([0.1, 10.0], dtype=DOUBLE)
    steps = step_per_chain(step, 500, torch.zeros(1), seed(0))
    assert steps.shape == (1000, 1) and steps.dtype == torch.float32
    share = steps[:, 0].double() / step.repeat_interleave(500)
    assert 0.8 <= float(share.min()) < 0.82 and 1.18 < float(share.max()) <= 1.2 + 1e-6
