import math

import pytest
import torch
from zoo.chains import BEND, WIDTH, Careless, KernelMoves, banana, fixed, gaussian, pair, score
from zoo.stats import Z, follows, has_covariance, has_mean, has_variance

from credo.kernels.hamiltonian import Integrator
from credo.kernels.log_density import DIVERGENT, Point
from credo.kernels.nuts_tree import corners, nuts, turns

DOUBLE = torch.float64
METRICS = {
    "unit": torch.ones(2, dtype=DOUBLE),
    "diagonal": torch.tensor([0.4, 1.5], dtype=DOUBLE),
    "dense": torch.tensor([[0.7, 0.0], [1.1, 0.9]], dtype=DOUBLE),
}


def wide(step, chains):
    return torch.full((chains, 1), step, dtype=DOUBLE)


def test_corners_are_the_first_leaves_of_all_subtrees_that_end_here():
    """A subtree of 2^k leaves, k >= 1, ends at ``leaf`` where leaf + 1 is a multiple of 2^k; its
    first leaf must be the stored one.
    """
    stored = {}
    for leaf in range(2**11):
        low, high = corners(leaf)
        if leaf % 2 == 0:
            stored[high] = leaf
            assert high < 11  # a place per level is enough
        else:
            ending = [leaf + 1 - 2**k for k in range(1, 12) if (leaf + 1) % 2**k == 0]
            assert sorted(stored[level] for level in range(low, high + 1)) == sorted(ending)


def test_turning_is_told_from_the_ends_and_the_sum_between():
    def turned(*momenta):
        path = torch.tensor(momenta, dtype=DOUBLE)
        return bool(turns(path[0], path[-1], path.sum(0)))

    assert not turned((1.0, 0.0), (1.0, 0.1))
    assert not turned((1.0, 0.0), (0.8, 0.6), (0.6, 0.8))  # a quarter of a circle
    assert turned((1.0, 0.0), (0.0, 1.0), (-1.0, 0.0))  # half of one
    assert turned((1.0, 0.0), (0.0, 1.0), (-1.2, 0.1)) and turned(
        (-1.2, 0.1), (0.0, 1.0), (1.0, 0.0)
    )  # at one end only
    assert turned((1.0,), (-0.5,)) and turned((-1.0,), (0.5,)) and not turned((-1.0,), (-0.5,))
    assert turned((0.0, 0.0), (0.0, 0.0))  # no motion is none onwards
    # the same forwards and backwards in time, and with all momenta reversed
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        path = torch.randn(5, 3, generator=generator, dtype=DOUBLE) + 0.5
        one = turns(path[0], path[-1], path.sum(0))
        assert (
            one == turns(path[-1], path[0], path.sum(0)) == turns(-path[0], -path[-1], -path.sum(0))
        )


def reference(target, position, step, scale, max_depth, generator):
    """One draw of one chain, from the definition: whole trajectories in lists, every balanced
    subtree looked at from the outside.

    It draws the same random numbers in the same order as the sampler, and stops at the same leaf.
    """

    def once(state, sign):
        x, r, slope = state
        r = r + sign * step / 2 * (slope @ scale)
        x = x + sign * step * (r @ scale.T)
        slope = target(x)[1]
        return x, r + sign * step / 2 * (slope @ scale), slope

    def energy(state):
        return float(0.5 * state[1].square().sum() - target(state[0])[0])

    def uniform():
        return float(torch.rand(1, generator=generator, dtype=DOUBLE))

    def bad(path):
        momenta = [state[1][0] for state in path]
        rho = sum(momenta) - 0.5 * (momenta[0] + momenta[-1])
        return float(rho @ momenta[0]) <= 0 or float(rho @ momenta[-1]) <= 0

    momentum = torch.randn(position.shape, generator=generator, dtype=DOUBLE)
    path = [(position, momentum, target(position)[1])]
    origin = energy(path[0])
    pick, log_total, steps, depth, rates, divergent = position, 0.0, 0, 0, 0.0, False
    for level in range(max_depth):
        depth += 1
        sign = 1 if uniform() < 0.5 else -1
        new, weights, chosen, ok = [], [], None, True
        state = path[-1] if sign == 1 else path[0]
        for leaf in range(2**level):
            state = once(state, sign)
            gain = origin - energy(state)
            gain = -math.inf if math.isnan(gain) else gain
            steps, rates = steps + 1, rates + min(1.0, math.exp(min(0.0, gain)))
            new.append(state)
            weights.append(gain)
            lost = gain < -DIVERGENT
            divergent |= lost
            if (
                uniform()
                < math.exp(gain - float(torch.logsumexp(torch.tensor(weights, dtype=DOUBLE), 0)))
                and not lost
            ):
                chosen = state[0]
            blocks = [2**k for k in range(1, level + 1) if (leaf + 1) % 2**k == 0]
            if lost or any(bad(new[-size:]) for size in blocks):
                ok = False
                break
        jump = uniform()
        if not ok:
            break
        log_new = float(torch.logsumexp(torch.tensor(weights, dtype=DOUBLE), 0))
        if jump < math.exp(min(0.0, log_new - log_total)):
            pick = chosen
        log_total = float(
            torch.logaddexp(
                torch.tensor(log_total, dtype=DOUBLE), torch.tensor(log_new, dtype=DOUBLE)
            )
        )
        path = path + new if sign == 1 else new[::-1] + path
        if bad(path):
            break
    return pick, steps, depth, rates / steps, divergent


@pytest.mark.parametrize("make", [pair, banana])
@pytest.mark.parametrize("metric", ["unit", "dense"])
def test_a_draw_is_that_of_the_definition(make, metric):
    """Forty trees of all depths against a list-based implementation with the same random
    numbers.
    """
    known = make()
    scale = METRICS[metric]
    matrix = torch.diag(scale) if scale.dim() == 1 else scale
    depths = set()
    for seed in range(40):
        position = known.exact(1, torch.Generator().manual_seed(1000 + seed))
        step = (0.05, 0.2, 0.7, 1.6)[seed % 4]
        walk = nuts(
            Integrator(known.target),
            Point.at(known.target, position),
            wide(step, 1),
            scale,
            7,
            torch.Generator().manual_seed(seed),
        )
        pick, steps, depth, rate, divergent = reference(
            known.target, position, step, matrix, 7, torch.Generator().manual_seed(seed)
        )
        depths.add(depth)
        assert (int(walk.steps), int(walk.depth), bool(walk.divergent)) == (steps, depth, divergent)
        assert abs(float(walk.rate) - rate) < 1e-9
        assert torch.allclose(walk.point.position, pick, atol=1e-9)
    assert len(depths) >= 4


def test_a_trajectory_that_never_turns_has_all_its_steps():
    def flat(x):
        return torch.zeros_like(x[:, 0]), torch.zeros_like(x)

    for depth in (1, 3, 6):
        point = Point.at(flat, torch.zeros(5, 2, dtype=DOUBLE))
        walk = nuts(
            Integrator(flat),
            point,
            wide(0.1, 5),
            METRICS["unit"],
            depth,
            torch.Generator().manual_seed(0),
        )
        assert (
            walk.steps.tolist() == [2.0**depth - 1] * 5
            and walk.depth.tolist() == [float(depth)] * 5
        )
        assert torch.equal(walk.rate, torch.ones(5, dtype=DOUBLE)) and not walk.divergent.any()


def test_on_a_flat_target_every_point_of_the_last_half_is_as_likely_as_another():
    """All weights are equal, so each doubling jumps into its half for sure, and the pick is uniform
    over the last one: places 2^(d-1), ..., 2^d - 1 steps from the start in one direction where all
    doublings went the same way. A z-test per place.
    """

    def flat(x):
        return torch.zeros_like(x[:, 0]), torch.zeros_like(x)

    chains = 40_000
    point = Point.at(flat, torch.zeros(chains, 1, dtype=DOUBLE))
    again = torch.Generator().manual_seed(0)
    walk = nuts(
        Integrator(flat),
        point,
        wide(1.0, chains),
        torch.ones(1, dtype=DOUBLE),
        3,
        torch.Generator().manual_seed(0),
    )
    momentum = torch.randn(chains, 1, generator=again, dtype=DOUBLE)
    place = (walk.point.position / momentum).round().squeeze(-1).abs()
    # Doublings +1, +-1, +-1: the last half is 4 leaves beyond the present ends. Forwards thrice:
    # 4..7; other orders: 1..4, 2..5, 3..6.
    counts = {k: float((place == k).double().mean()) for k in range(9)}
    expected = dict.fromkeys(counts, 0.0)
    for signs in range(8):
        left = right = 0
        for level in range(3):
            size = 2**level
            ends = (right + 1, right + size) if signs >> level & 1 else (left - size, left - 1)
            left, right = min(left, ends[0]), max(right, ends[1])
        for leaf in range(ends[0], ends[1] + 1):
            expected[abs(leaf)] += 1 / 8 / 4
    for k, share in expected.items():
        assert abs(counts[k] - share) <= Z * math.sqrt(share * (1 - share) / chains), k


def after(known, scale, step, moves=1, chains=10_000, max_depth=6):
    generator = torch.Generator().manual_seed(0)
    point = Point.at(known.target, known.exact(chains, generator))
    for _ in range(moves):
        point = nuts(
            Integrator(known.target), point, wide(step, chains), scale, max_depth, generator
        ).point
    return point


@pytest.mark.parametrize("metric", METRICS)
def test_draws_leave_a_gaussian_as_it_is(metric):
    draws = after(pair(), METRICS[metric], 0.6).position
    has_mean(draws, 0.0)
    has_covariance(draws, torch.tensor([[1.0, 2.7], [2.7, 9.0]], dtype=DOUBLE))
    follows(draws[:, 0], "norm")


@pytest.mark.parametrize(("step", "max_depth"), [(0.5, 6), (1.0, 6), (0.3, 2)])
def test_draws_leave_a_banana_as_it_is(step, max_depth):
    """Also where steps are too large for comfort and where trees are cut short."""
    known = banana()
    point = after(known, METRICS["unit"], step, 2, max_depth=max_depth)
    draws = point.position
    has_mean(draws, known.mean)
    has_variance(draws, known.variance)
    follows(draws[:, 0] / WIDTH, "norm")
    follows(draws[:, 1] - BEND * (draws[:, 0].square() - WIDTH**2), "norm")
    value, slope = known.target(draws)
    assert torch.allclose(point.value, value) and torch.allclose(
        point.slope, slope
    )  # the pick is one point, in all its parts


def test_moves_between_any_two_places_balance():
    """At stationarity a reversible chain goes from one bin to another as often as back (McNemar's z
    for every pair of bins).

    The target has two modes of different mass, which a sampler with wrong weights visits in the
    wrong proportion.
    """
    locs, logs = (
        torch.tensor([-1.1, 1.1], dtype=DOUBLE),
        torch.tensor([0.25, 0.75], dtype=DOUBLE).log(),
    )

    def target(x):
        terms = logs - 0.5 * ((x - locs) / 0.6).square()
        share = terms.softmax(-1)
        return terms.logsumexp(-1), (share * (locs - x) / 0.36).sum(-1, keepdim=True)

    chains = 60_000
    generator = torch.Generator().manual_seed(0)
    which = (torch.rand(chains, generator=generator) < 0.75).long()
    start = (locs[which] + 0.6 * torch.randn(chains, generator=generator, dtype=DOUBLE)).unsqueeze(
        -1
    )
    walk = nuts(
        Integrator(target),
        Point.at(target, start),
        wide(0.5, chains),
        torch.ones(1, dtype=DOUBLE),
        5,
        generator,
    )
    edges = torch.tensor([-1.5, -0.8, 0.0, 0.8, 1.4], dtype=DOUBLE)
    one, two = (
        torch.bucketize(start.flatten(), edges),
        torch.bucketize(walk.point.position.flatten(), edges),
    )
    counts = torch.zeros(6, 6, dtype=DOUBLE).index_put_(
        (one, two), torch.ones(chains, dtype=DOUBLE), accumulate=True
    )
    z = (counts - counts.T) / (counts + counts.T).clamp_min(1).sqrt()
    assert float(z.abs().max()) < Z
    assert (
        float(counts[:3, 3:].sum()) > 1000 and float((one != two).double().mean()) > 0.4
    )  # between the modes, and within


def test_picking_without_weights_fails_the_test_of_moments():
    known = pair()
    begin = known.exact(128, torch.Generator().manual_seed(0))
    scale = METRICS["diagonal"]
    right = fixed(KernelMoves("nuts"), Integrator(known.target), begin, 1.3, scale, 60)
    wrong = fixed(KernelMoves("nuts"), Careless(known.target), begin, 1.3, scale, 60)
    assert score(right, known.mean, known.variance) < Z < score(wrong, known.mean, known.variance)


def test_a_chain_without_a_density_stays_and_leaves_the_others_right():
    """Chain 0 starts where the density is not a number; the law of the others must not change."""
    known = pair()

    def target(x):
        value, slope = known.target(x)
        lost = x[:, 0] > 50
        return torch.where(lost, math.nan, value), torch.where(lost.unsqueeze(-1), math.nan, slope)

    generator = torch.Generator().manual_seed(0)
    begin = known.exact(8000, generator)
    begin[0] = 100.0
    walk = nuts(
        Integrator(target),
        Point.at(target, begin),
        wide(0.6, 8000),
        METRICS["diagonal"],
        6,
        generator,
    )
    assert (
        torch.equal(walk.point.position[0], begin[0])
        and bool(walk.divergent[0])
        and float(walk.rate[0]) == 0.0
    )
    assert not walk.divergent[1:].any()
    has_mean(walk.point.position[1:], 0.0)
    has_covariance(walk.point.position[1:], torch.tensor([[1.0, 2.7], [2.7, 9.0]], dtype=DOUBLE))


def test_a_wall_of_infinite_energy_turns_chains_back():
    for outside in (-math.inf, math.nan):

        def target(x, outside=outside):
            return torch.where((x > 0).all(-1), -0.5 * x.square().sum(-1), outside), -x

        generator = torch.Generator().manual_seed(0)
        point = Point.at(target, torch.randn(20_000, 1, generator=generator, dtype=DOUBLE).abs())
        for _ in range(2):
            point = nuts(
                Integrator(target),
                point,
                wide(0.5, 20_000),
                torch.ones(1, dtype=DOUBLE),
                5,
                generator,
            ).point
        follows(point.position[:, 0], "halfnorm")


def test_divergences_are_flagged_and_never_picked():
    """A step far beyond what a stiff direction allows."""
    known = gaussian([[1.0, 0.0], [0.0, 1e-6]])
    generator = torch.Generator().manual_seed(0)
    point = Point.at(known.target, known.exact(50, generator))
    steps = torch.cat([wide(0.5, 25), wide(1e-3, 25)])
    walk = nuts(Integrator(known.target), point, steps, METRICS["unit"], 6, generator)
    assert walk.divergent[:25].all() and not walk.divergent[25:].any()
    assert (
        torch.equal(walk.point.position[:25], point.position[:25]) and (walk.steps[:25] == 1).all()
    )
    assert not torch.equal(walk.point.position[25:], point.position[25:])
    assert all(part.isfinite().all() for part in walk.point)


def test_what_a_walk_reports_is_within_bounds_and_repeats():
    known = banana()
    point = Point.at(known.target, known.exact(100, torch.Generator().manual_seed(1)))
    one, two = (
        nuts(
            Integrator(known.target),
            point,
            wide(0.4, 100),
            METRICS["unit"],
            5,
            torch.Generator().manual_seed(2),
        )
        for _ in range(2)
    )
    assert all(torch.equal(a, b) for a, b in zip(one[1:], two[1:], strict=True))
    assert torch.equal(one.point.position, two.point.position)
    assert (one.rate >= 0).all() and (one.rate <= 1).all() and one.energy.isfinite().all()
    assert (
        (one.depth >= 1).all()
        and (one.depth <= 5).all()
        and (one.steps < 2**one.depth).all()
        and (one.steps >= 2 ** (one.depth - 1)).all()
    )
    assert (one.energy + one.point.value >= -1e-12).all()  # kinetic energy is not negative
