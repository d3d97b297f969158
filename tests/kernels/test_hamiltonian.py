import math

import pytest
import torch
from zoo.chains import BEND, WIDTH, Careless, KernelMoves, banana, fixed, pair, score
from zoo.stats import Z, follows, has_covariance, has_mean, has_variance

from credo.kernels.hamiltonian import Integrator, first_step, hmc, kinetic
from credo.kernels.log_density import DIVERGENT, Point

DOUBLE = torch.float64


def wide(step, chains):
    return torch.full((chains, 1), step, dtype=DOUBLE)


def after(known, scale, step, count=3, moves=2, chains=40_000, temperature=1.0, seed=0):
    """Chains that start as exact draws of the target at ``temperature`` and move a few times: their
    law must not change.
    """
    generator = torch.Generator().manual_seed(seed)
    point = Point.at(known.target, known.exact(chains, generator) * math.sqrt(temperature))
    for _ in range(moves):
        point = hmc(
            Integrator(known.target),
            point,
            wide(step, chains),
            scale,
            count,
            generator,
            temperature,
        ).point
    return point.position


METRICS = {
    "unit": torch.ones(2, dtype=DOUBLE),
    "diagonal": torch.tensor([0.4, 1.5], dtype=DOUBLE),
    "dense": torch.tensor([[0.7, 0.0], [1.1, 0.9]], dtype=DOUBLE),
}


@pytest.mark.parametrize("metric", METRICS)
def test_moves_leave_a_gaussian_as_it_is(metric):
    known = pair()
    draws = after(known, METRICS[metric], 0.6)
    has_mean(draws, known.mean)
    has_covariance(draws, torch.tensor([[1.0, 2.7], [2.7, 9.0]], dtype=DOUBLE))
    follows(draws[:, 0], "norm")


@pytest.mark.parametrize("metric", METRICS)
def test_moves_leave_a_banana_as_it_is(metric):
    known = banana()
    draws = after(known, METRICS[metric], 0.5)
    has_mean(draws, known.mean)
    has_variance(draws, known.variance)
    follows(draws[:, 0] / WIDTH, "norm")
    follows(draws[:, 1] - BEND * (draws[:, 0].square() - WIDTH**2), "norm")


@pytest.mark.parametrize("temperature", [0.1, 4.0])
def test_a_temperature_samples_the_power(temperature):
    """exp(-U / T): a Gaussian's covariance times T. The same step size serves."""
    known = pair()
    draws = after(known, METRICS["dense"], 0.8, temperature=temperature)
    has_covariance(
        draws / math.sqrt(temperature), torch.tensor([[1.0, 2.7], [2.7, 9.0]], dtype=DOUBLE)
    )
    wrong = after(known, METRICS["dense"], 0.8, temperature=1.0)
    with pytest.raises(AssertionError, match="variance"):
        has_variance(wrong, temperature * known.variance)


def test_a_wall_of_infinite_energy_turns_chains_back():
    """A half normal: beyond zero the density is zero, or not a number; both must only reject."""
    for outside in (-math.inf, math.nan):

        def target(x, outside=outside):
            inside = (x > 0).all(-1)
            return torch.where(inside, -0.5 * x.square().sum(-1), outside), -x

        generator = torch.Generator().manual_seed(0)
        point = Point.at(target, torch.randn(40_000, 1, generator=generator, dtype=DOUBLE).abs())
        for _ in range(3):
            point = hmc(
                Integrator(target),
                point,
                wide(0.7, 40_000),
                torch.ones(1, dtype=DOUBLE),
                2,
                generator,
            ).point
        follows(point.position[:, 0], "halfnorm")


def test_accepting_everything_fails_the_same_test():
    known = pair()
    generator = torch.Generator().manual_seed(0)
    begin = known.exact(256, generator)
    scale = METRICS["diagonal"]
    right = fixed(KernelMoves("hmc", 3), Integrator(known.target), begin, 0.9, scale, 100)
    wrong = fixed(KernelMoves("hmc", 3), Careless(known.target), begin, 0.9, scale, 100)
    assert score(right, known.mean, known.variance) < Z < score(wrong, known.mean, known.variance)


@pytest.mark.parametrize("factor", [0.8, 1.25])
def test_momenta_of_a_wrong_scale_fail_the_same_test(monkeypatch, factor):
    import credo.kernels.hamiltonian as module

    known, honest = pair(), module.normal
    begin = known.exact(256, torch.Generator().manual_seed(0))
    monkeypatch.setattr(module, "normal", lambda like, generator: factor * honest(like, generator))
    wrong = fixed(
        KernelMoves("hmc", 3), Integrator(known.target), begin, 0.3, METRICS["diagonal"], 100
    )
    assert score(wrong, known.mean, known.variance) > Z


def test_a_lopsided_step_fails_the_same_test():
    """A whole kick first and none last: of first order, and not its own inverse in reversed time,
    though it keeps volume.
    """

    class Lopsided:
        def __init__(self, target):
            self.target = target

        def __call__(self, point, momentum, step, scale, count):
            for _ in range(count):
                momentum = momentum + step * scale * point.slope
                point = Point.at(self.target, point.position + step * scale * momentum)
            return point, momentum

    known = pair()
    begin = known.exact(256, torch.Generator().manual_seed(0))
    wrong = fixed(
        KernelMoves("hmc", 3), Lopsided(known.target), begin, 0.9, METRICS["diagonal"], 100
    )
    assert score(wrong, known.mean, known.variance) > Z


def test_rate_energy_and_choice_are_those_of_the_trajectory():
    """Everything a move reports, computed again from the same random numbers."""
    known, temperature = banana(), 0.5
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        point = Point.at(known.target, known.exact(200, generator))
        again = torch.Generator()
        again.set_state(generator.get_state())
        move = hmc(
            Integrator(known.target),
            point,
            wide(0.9, 200),
            METRICS["unit"],
            4,
            generator,
            temperature,
        )
        momentum = torch.randn(200, 2, generator=again, dtype=DOUBLE) * math.sqrt(temperature)
        end, turned = Integrator(known.target)(point, momentum, wide(0.9, 200), METRICS["unit"], 4)
        before, later = kinetic(momentum) - point.value, kinetic(turned) - end.value
        rate = ((before - later) / temperature).clamp(max=0).exp()
        taken = torch.rand(200, generator=again, dtype=DOUBLE) < rate
        assert torch.allclose(move.rate, rate) and 0 < int(taken.sum()) < 200
        assert torch.equal(
            move.point.position, torch.where(taken.unsqueeze(-1), end.position, point.position)
        )
        assert torch.equal(move.point.value, torch.where(taken, end.value, point.value))
        assert torch.equal(
            move.point.slope, torch.where(taken.unsqueeze(-1), end.slope, point.slope)
        )
        assert torch.allclose(move.energy, torch.where(taken, later, before))


def test_divergences_are_flagged_chain_by_chain_and_rejected():
    known = pair()
    generator = torch.Generator().manual_seed(0)
    point = Point.at(known.target, known.exact(4, generator))
    steps = torch.tensor([[0.3], [50.0], [1e200], [0.3]], dtype=DOUBLE)
    move = hmc(Integrator(known.target), point, steps, METRICS["unit"], 10, generator)
    assert move.divergent.tolist() == [False, True, True, False]
    assert move.rate[1:3].tolist() == [0.0, 0.0] and torch.equal(
        move.point.position[1:3], point.position[1:3]
    )
    assert all(part.isfinite().all() for part in move.point) and move.energy.isfinite().all()


def test_a_large_error_that_is_not_a_divergence_is_only_rejected():
    """Up to DIVERGENT nats of error a trajectory is merely bad."""

    def target(x):
        return -0.5 * x.square().sum(-1), -x

    point = Point.at(target, torch.ones(1, 1, dtype=DOUBLE))
    energies = []
    for step in (2.2, 3.0, 4.0):
        move = hmc(
            Integrator(target),
            point,
            wide(step, 1),
            torch.ones(1, dtype=DOUBLE),
            2,
            torch.Generator().manual_seed(1),
        )
        r = torch.randn(1, 1, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
        end, turned = Integrator(target)(point, r, wide(step, 1), torch.ones(1, dtype=DOUBLE), 2)
        error = float(kinetic(turned) - end.value - kinetic(r) + point.value)
        energies.append(error)
        assert bool(move.divergent) == (error >= DIVERGENT)
    assert min(energies) < DIVERGENT < max(energies)


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_the_first_step_follows_the_scale_of_the_target(size):
    """For N(0, size^2) in ten dimensions one step of about ``size`` is accepted four times in five;
    halving and doubling find it within 2.
    """

    def target(x):
        return -0.5 * (x / size).square().sum(-1), -x / size**2

    generator = torch.Generator().manual_seed(0)
    point = Point.at(target, size * torch.randn(64, 10, generator=generator, dtype=DOUBLE))
    step = first_step(
        Integrator(target),
        point,
        torch.ones(10, dtype=DOUBLE),
        generator,
        torch.tensor(0.1, dtype=DOUBLE),
    )
    assert step.shape == () and 0.3 < float(step) / size < 3.0
    by_scale = torch.full((10,), size, dtype=DOUBLE)
    step = first_step(
        Integrator(target), point, by_scale, generator, torch.tensor(0.1, dtype=DOUBLE)
    )
    assert 0.3 < float(step) < 3.0


def test_the_search_for_a_first_step_ends_where_there_is_none():
    def broken(x):
        return torch.full_like(x[:, 0], math.nan), torch.full_like(x, math.nan)

    point = Point(
        torch.zeros(2, 3, dtype=DOUBLE),
        torch.zeros(2, dtype=DOUBLE),
        torch.zeros(2, 3, dtype=DOUBLE),
    )
    generator = torch.Generator().manual_seed(0)
    step = first_step(
        Integrator(broken),
        point,
        torch.ones(3, dtype=DOUBLE),
        generator,
        torch.tensor(0.1, dtype=DOUBLE),
    )
    assert 0 < float(step) < 1e-10


def test_kinetic_energy_is_summed_in_double_precision():
    r = torch.full((1, 100_000), 1.0001, dtype=torch.float32)
    assert kinetic(r).dtype == DOUBLE
    assert abs(float(kinetic(r)) - 0.5 * 100_000 * float(r[0, 0].double()) ** 2) < 1e-6
