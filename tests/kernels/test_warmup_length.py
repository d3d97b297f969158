import math

import pytest
import torch
from zoo.chains import banana, gaussian

from credo.kernels.hamiltonian import Integrator
from credo.kernels.log_density import Point
from credo.kernels.warmup import SHARE, TrajectoryLength, turning_steps

DOUBLE = torch.float64


def measured(cov, step, chains=64, most=20_000, scale=None, seed=0):
    known = gaussian(torch.as_tensor(cov, dtype=DOUBLE))
    generator = torch.Generator().manual_seed(seed)
    point = Point.at(known.target, known.exact(chains, generator))
    scale = torch.ones(len(known.mean), dtype=DOUBLE) if scale is None else scale
    return turning_steps(
        Integrator(known.target),
        point,
        torch.full((chains, 1), step, dtype=DOUBLE),
        scale,
        most,
        generator,
    )


def found(steps, step, most=20_000):
    step = torch.tensor(step, dtype=DOUBLE)
    return TrajectoryLength.start(step).update(steps, step).num_steps(step, most)


@pytest.mark.parametrize("step", [0.3, 0.03, 0.003])
def test_independent_gaussians_turn_after_half_a_period(step):
    """In many dimensions x.x = r.r and x.r = 0, so the way and the momentum are at right angles
    after a time pi; a draw is half of that.
    """
    steps = measured(torch.eye(100), step, chains=32)
    assert (
        abs(float(steps.mean()) * step / math.pi - 1) < 0.1
    )  # 1 / sqrt(100) per chain, over 32 chains: 2 % and the last step
    assert abs(found(steps, step) * step / (SHARE * math.pi) - 1) < 0.15


def test_the_metric_sets_the_unit_of_time():
    std = torch.linspace(0.01, 100.0, 50, dtype=DOUBLE)
    steps = measured(torch.diag(std.square()), 0.05, chains=32, scale=std)
    assert abs(float(steps.mean()) * 0.05 / math.pi - 1) < 0.15


def test_a_slow_direction_makes_trajectories_longer():
    """Beside one fast coordinate, one that takes thirty times as long: the way along it outweighs
    that one's turns. (Beside many fast ones it does not: all turn together after a time pi and
    outvote it.)
    """
    fast, slow = (
        found(measured(torch.diag(torch.tensor([1.0, s])), 0.1), 0.1) for s in (1.0, 900.0)
    )
    assert slow > 3 * fast


@pytest.mark.parametrize("step", [0.05, 0.4])
def test_steps_to_the_turn_are_those_of_the_definition(step):
    """Chain by chain: the first end whose momentum points against the momenta so far, its own
    counted half.
    """
    known = banana()
    position = known.exact(20, torch.Generator().manual_seed(0))
    point = Point.at(known.target, position)
    scale = torch.tensor([[0.7, 0.0], [1.1, 0.9]], dtype=DOUBLE)
    steps = turning_steps(
        Integrator(known.target),
        point,
        torch.full((20, 1), step, dtype=DOUBLE),
        scale,
        500,
        torch.Generator().manual_seed(1),
    )
    momenta = torch.randn(20, 2, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
    for c in range(20):
        here, r = Point.at(known.target, position[c : c + 1]), momenta[c : c + 1]
        path = [r]
        while True:
            here, r = Integrator(known.target)(
                here, r, torch.full((1, 1), step, dtype=DOUBLE), scale, 1
            )
            path.append(r)
            if float(((sum(path) - 0.5 * r) * r).sum()) <= 0:
                break
        assert int(steps[c]) == len(path) - 1
    assert torch.equal(point.position, position)


def test_the_most_steps_are_respected():
    def flat(x):
        return torch.zeros_like(x[:, 0]), torch.zeros_like(x)

    point = Point.at(flat, torch.zeros(3, 2, dtype=DOUBLE))
    step = torch.full((3, 1), 0.1, dtype=DOUBLE)
    steps = turning_steps(
        Integrator(flat),
        point,
        step,
        torch.ones(2, dtype=DOUBLE),
        37,
        torch.Generator().manual_seed(0),
    )
    assert steps.tolist() == [37.0] * 3  # it never turns
    start = TrajectoryLength.start(step[0, 0])
    long = start.update(steps * 1000, step[0, 0])
    assert long.num_steps(step[0, 0], 50) == 50 and long.num_steps(step[0, 0], 10**9) > 50
    short = start.update(torch.zeros(3, dtype=DOUBLE), step[0, 0])
    assert short.num_steps(step[0, 0], 50) == 1


def test_a_chain_that_leaves_the_numbers_says_nothing():
    known = gaussian(torch.eye(2))
    point = Point.at(known.target, known.exact(3, torch.Generator().manual_seed(0)))
    step = torch.tensor([[0.1], [1e200], [0.1]], dtype=DOUBLE)
    steps = turning_steps(
        Integrator(known.target),
        point,
        step,
        torch.ones(2, dtype=DOUBLE),
        1000,
        torch.Generator().manual_seed(0),
    )
    assert steps[1].isnan() and (steps[[0, 2]] < 1000).all()
    alone = turning_steps(
        Integrator(known.target),
        point,
        step[:1].expand(3, 1),
        torch.ones(2, dtype=DOUBLE),
        1000,
        torch.Generator().manual_seed(0),
    )
    assert torch.equal(steps[[0, 2]], alone[[0, 2]])


def test_lengths_start_at_ten_steps_and_the_first_measurement_decides():
    step = torch.tensor(0.2, dtype=DOUBLE)
    start = TrajectoryLength.start(step)
    assert start.num_steps(step, 1000) == 10
    before = [value.clone() for value in start]
    length = start.update(torch.full((4,), 100.0, dtype=DOUBLE), step)
    assert length.num_steps(step, 1000) == round(SHARE * 100)
    assert length.num_steps(step / 2, 1000) == round(SHARE * 200)  # the time stays the same
    assert all(torch.equal(now, then) for now, then in zip(start, before, strict=True))


def test_later_measurements_are_averaged_and_old_ones_fade():
    """Equal weights at first; later ones at least a fifth, so that a length measured far from the
    bulk does not stay.
    """
    step = torch.tensor(1.0, dtype=DOUBLE)
    length = TrajectoryLength.start(step)
    for steps in (10.0, 40.0):
        length = length.update(torch.full((4,), steps, dtype=DOUBLE), step)
    assert abs(float(length.log_time.exp()) - 20.0) < 1e-9  # the geometric mean
    for _ in range(30):
        length = length.update(torch.full((4,), 1000.0, dtype=DOUBLE), step)
    assert 0.98 < float(length.log_time.exp()) / 1000 < 1.0


def test_measuring_repeats_with_the_same_numbers():
    assert torch.equal(measured(torch.eye(3), 0.1), measured(torch.eye(3), 0.1))
    assert not torch.equal(measured(torch.eye(3), 0.1), measured(torch.eye(3), 0.1, seed=1))
