import math

import pytest
import torch
from zoo.chains import pair

from credo.core.errors import SettingError
from credo.kernels.stein import imq, kernels, median_bandwidth, rbf, stein_force

DOUBLE = torch.float64


def particles(count, size=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, size, generator=generator, dtype=DOUBLE), torch.randn(
        count, size, generator=generator, dtype=DOUBLE
    )


def bandwidth_by_hand(w):
    squares = sorted(
        float((w[i] - w[j]).square().sum()) for i in range(len(w)) for j in range(len(w)) if i != j
    )
    return squares[(len(squares) - 1) // 2] / math.log(max(len(w), 2))


FORMULAS = {"rbf": lambda d, h: (-d / h).exp(), "imq": lambda d, h: (1 + d / h) ** -0.5}


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("count", [2, 3, 8])
def test_the_force_is_the_double_sum_with_the_kernels_own_gradient(name, count):
    w, slopes = particles(count)
    h = bandwidth_by_hand(w)
    wanted = torch.zeros_like(w)
    for i in range(count):
        for j in range(count):
            other = w[j].clone().requires_grad_()
            k = FORMULAS[name]((other - w[i]).square().sum(), h)
            (repulsion,) = torch.autograd.grad(k, other)
            wanted[i] += (k.detach() * slopes[j] + repulsion) / count
    assert torch.allclose(stein_force(w, slopes, kernels[name]), wanted, atol=1e-12)


@pytest.mark.parametrize("kernel", [rbf, imq])
def test_one_particle_climbs_the_gradient(kernel):
    w, slopes = particles(1)
    assert torch.equal(stein_force(w, slopes, kernel), slopes)


@pytest.mark.parametrize("name", FORMULAS)
def test_kernels_return_their_derivative(name):
    squares = torch.linspace(0.0, 5.0, 11, dtype=DOUBLE).requires_grad_()
    h = torch.tensor(1.3, dtype=DOUBLE)
    value, change = kernels[name](squares, h)
    assert torch.allclose(value, FORMULAS[name](squares, h))
    assert torch.allclose(change, torch.autograd.grad(value.sum(), squares)[0])
    assert float(value.detach()[0]) == 1.0


@pytest.mark.parametrize("count", [2, 5, 6])
def test_the_bandwidth_is_the_median_square_over_log_n(count):
    w, _ = particles(count)
    squares = torch.cdist(w, w).square()
    assert abs(float(median_bandwidth(squares)) - bandwidth_by_hand(w)) < 1e-9


def test_particles_in_one_place_give_finite_forces():
    w = torch.zeros(4, 2, dtype=DOUBLE)
    slopes = torch.ones(4, 2, dtype=DOUBLE)
    for kernel in (rbf, imq):
        assert torch.allclose(stein_force(w, slopes, kernel), slopes)
    assert float(median_bandwidth(torch.zeros(1, 1, dtype=DOUBLE))) > 0


@pytest.mark.parametrize("kernel", [rbf, imq])
def test_forces_do_not_depend_on_order_and_follow_shifts(kernel):
    w, slopes = particles(6)
    force = stein_force(w, slopes, kernel)
    order = torch.randperm(6, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(stein_force(w[order], slopes[order], kernel), force[order])
    assert torch.allclose(stein_force(w + 1000.0, slopes, kernel), force, atol=1e-8)
    assert torch.allclose(
        stein_force(w, torch.zeros_like(w), kernel).sum(0), torch.zeros(3, dtype=DOUBLE), atol=1e-12
    )  # they push in pairs


def settle(known_slope, w, kernel, rate=0.5, rounds=1500):
    for _ in range(rounds):
        w = w + rate * stein_force(w, known_slope(w), kernel)
    return w


@pytest.mark.parametrize("kernel", [rbf, imq])
def test_many_particles_settle_on_a_normal(kernel):
    """N(2, 0.25) in one dimension: at the fixed point the mean is exact, since the kernel's
    constant part makes the mean slope vanish nearly; the variance of 60 particles is within a tenth
    and, of a finite set, on the low side.
    """
    w = torch.linspace(-1.0, 0.0, 60, dtype=DOUBLE).unsqueeze(-1)
    w = settle(lambda x: -(x - 2.0) / 0.25, w, kernel, rate=0.1, rounds=3000)
    assert abs(float(w.mean()) - 2.0) < 0.01
    assert 0.85 < float(w.var()) / 0.25 < 1.05
    again = w + 0.1 * stein_force(w, -(w - 2.0) / 0.25, kernel)
    assert float((again - w).abs().max()) < 1e-5  # they rest


def test_particles_learn_correlations():
    known = pair()
    w = torch.randn(80, 2, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    w = settle(lambda x: known.target(x)[1], w, rbf, rate=0.1, rounds=3000)
    cov = torch.cov(w.T)
    assert abs(float(cov[0, 1] / (cov[0, 0] * cov[1, 1]).sqrt()) - 0.9) < 0.05
    assert 0.7 < float(cov[1, 1]) / 9.0 < 1.1


def test_unknown_kernels_are_named():
    with pytest.raises(SettingError, match="Unknown kernel 'rbff'. Did you mean 'rbf'"):
        kernels["rbff"]
