import math
from itertools import pairwise

import pytest
import torch
from zoo.chains import pair, well_density

from credo.kernels.cooling import anneal, cooling_move, start_cooling, temperature_at
from credo.kernels.hamiltonian import Integrator
from credo.kernels.log_density import differentiable

DOUBLE = torch.float64


def seed(n=0):
    return torch.Generator().manual_seed(n)


def test_cooling_is_geometric_between_its_ends():
    assert temperature_at(0.0, 10.0, 0.1) == 10.0 and math.isclose(
        temperature_at(1.0, 10.0, 0.1), 0.1
    )
    assert math.isclose(temperature_at(0.5, 10.0, 0.1), 1.0)
    steps = [temperature_at(i / 9, 5.0, 0.01) for i in range(10)]
    ratios = [b / a for a, b in pairwise(steps)]
    assert all(math.isclose(r, ratios[0]) and r < 1 for r in ratios)


def run(target, position, temperatures, steps=5):
    integrator, source = Integrator(target), seed()
    state = start_cooling(integrator, position, source)
    yield state, None
    for temperature in temperatures:
        state, info = cooling_move(integrator, state, temperature, steps, source)
        yield state, info


def test_the_best_point_of_every_chain_is_kept_with_its_value():
    known = pair()
    before = None
    for state, info in run(known.target, known.exact(16, seed(1)), [8.0] * 30):
        assert torch.allclose(known.target(state.best)[0], state.best_value)
        assert torch.allclose(known.target(state.point.position)[0], state.point.value)
        assert (state.best_value >= state.point.value).all()
        if before is not None:
            assert (state.best_value >= before).all() and info.trajectory.log_density.shape == (16,)
        before = state.best_value
    assert (state.point.value < state.best_value).any()  # hot chains go on


def test_moves_have_the_spread_of_their_temperature():
    """exp(-U / T) of a Gaussian has T times its variance: of 2,000 chains after 40 moves within a
    fifth, over six standard errors (2.2 % each).
    """
    known = pair()
    for temperature in (0.25, 4.0):
        *_, (state, _) = run(known.target, known.exact(2000, seed(1)), [temperature] * 40)
        ratio = state.point.position.var(0) / (temperature * known.variance)
        assert (ratio > 0.8).all() and (ratio < 1.2).all()


def test_annealing_ends_at_a_mode():
    """Of a Gaussian, wherever it starts.

    At the last temperatures, around 0.01, the energy above the mode is 0.01 on average.
    """
    known = pair()
    best = anneal(Integrator(known.target), 30 * known.exact(16, seed(1)), seed())
    assert best.shape == (16, 2) and float(-known.target(best)[0].min()) < 0.05


@pytest.mark.parametrize("seeded", [0, 1])
def test_annealing_crosses_a_barrier(seeded):
    """From the lower of two modes, 16 nats apart by a barrier: some of sixteen chains find the
    higher, and all come near one of the two.
    """
    target = differentiable(lambda x: well_density(x[:, 0], 2.0))
    best = anneal(Integrator(target), torch.full((16, 1), -1.0, dtype=DOUBLE), seed(seeded))
    assert int((best > 0).sum()) >= 4 and float((best.abs() - 1).abs().max()) < 0.25


def test_the_same_numbers_give_the_same_start():
    known = pair()
    a, b = (anneal(Integrator(known.target), known.exact(3, seed(1)), seed(5)) for _ in range(2))
    assert torch.equal(a, b)
