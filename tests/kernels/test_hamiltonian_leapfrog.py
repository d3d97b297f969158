import pytest
import torch
from zoo.chains import BEND, WIDTH, banana, fifty, pair

from credo.core.errors import SettingError
from credo.kernels.hamiltonian import Integrator
from credo.kernels.log_density import Point, differentiable

DOUBLE = torch.float64


def start(known, chains=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    position = known.exact(chains, generator)
    momentum = torch.randn(position.shape, generator=generator, dtype=DOUBLE)
    return Point.at(known.target, position), momentum


def wide(step, chains=6):
    return torch.full((chains, 1), step, dtype=DOUBLE)


def metrics(size):
    tril = (
        torch.randn(size, size, generator=torch.Generator().manual_seed(3), dtype=DOUBLE)
        / size**0.5
    )
    return (
        torch.ones(size, dtype=DOUBLE),
        torch.linspace(0.5, 2.0, size, dtype=DOUBLE),
        tril.tril() + torch.eye(size, dtype=DOUBLE),
    )


def energy(point, momentum):
    return 0.5 * momentum.square().sum(-1) - point.value


@pytest.mark.parametrize("make", [pair, banana, fifty])
@pytest.mark.parametrize("kind", [0, 1, 2])
def test_forward_and_back_in_time_is_where_it_was(make, kind):
    known = make()
    scale = metrics(len(known.mean))[kind]
    point, momentum = start(known)
    integrator = Integrator(known.target)
    end, turned = integrator(point, momentum, wide(0.05), scale, 20)
    assert not torch.allclose(end.position, point.position, atol=1e-2)
    back, again = integrator(end, turned, wide(-0.05), scale, 20)
    assert torch.allclose(back.position, point.position, atol=1e-10) and torch.allclose(
        again, momentum, atol=1e-10
    )
    flipped, reversed_ = integrator(
        end, -turned, wide(0.05), scale, 20
    )  # or with the momentum turned round
    assert torch.allclose(flipped.position, point.position, atol=1e-10) and torch.allclose(
        reversed_, -momentum, atol=1e-10
    )


@pytest.mark.parametrize("make", [pair, banana])
@pytest.mark.parametrize("kind", [0, 1, 2])
def test_volume_is_kept(make, kind):
    """The determinant of the map (position, momentum) -> (position, momentum), linear or not, is
    1.
    """
    known = make()
    size = len(known.mean)
    scale = metrics(size)[kind]
    point, momentum = start(known, 1)

    def log_density(x):  # differentiable twice, which ``known.target`` is not
        if make is pair:
            precision = torch.linalg.inv(torch.tensor([[1.0, 2.7], [2.7, 9.0]], dtype=DOUBLE))
            return -0.5 * ((x @ precision) * x).sum(-1)
        a, b = x.unbind(-1)
        return -0.5 * (a / WIDTH).square() - 0.5 * (b - BEND * (a.square() - WIDTH**2)).square()

    def target(x):
        with torch.enable_grad():
            x = x if x.requires_grad else x.requires_grad_()
            value = log_density(x)
            return value, torch.autograd.grad(value.sum(), x, create_graph=True)[0]

    assert torch.allclose(target(point.position.clone())[1], point.slope)

    def flow(both):
        position, r = both[:, :size], both[:, size:]
        end, turned = Integrator(target)(
            Point(position, *target(position)), r, wide(0.3, 1), scale, 7
        )
        return torch.cat([end.position, turned], -1)

    jacobian = torch.autograd.functional.jacobian(
        flow, torch.cat([point.position, momentum], -1)
    ).reshape(2 * size, 2 * size)
    assert abs(float(torch.linalg.det(jacobian)) - 1) < 1e-10


@pytest.mark.parametrize("make", [pair, banana])
def test_the_error_in_the_energy_is_of_second_order(make):
    """Half the step, over the same time, makes a quarter of the error."""
    known = make()
    point, momentum = start(known, 50)
    scale = metrics(2)[0]

    def error(step, count):
        end, turned = Integrator(known.target)(point, momentum, wide(step, 50), scale, count)
        return (energy(end, turned) - energy(point, momentum)).abs().mean()

    for step, count in ((0.1, 20), (0.05, 40)):
        ratio = float(error(step, count) / error(step / 2, 2 * count))
        assert 3.6 < ratio < 4.4  # 4 + O(step^2)


def test_value_and_slope_at_the_end_are_the_targets():
    known = banana()
    point, momentum = start(known)
    end, _ = Integrator(known.target)(point, momentum, wide(0.1), metrics(2)[2], 3)
    value, slope = known.target(end.position)
    assert torch.equal(end.value, value) and torch.equal(end.slope, slope)


def test_whitened_momenta_are_plain_ones_under_the_corresponding_mass_matrix():
    """With M = (S S^T)^-1, p = S^-T r: the textbook scheme p += h/2 slope, x += h M^-1 p, p += h/2
    slope.
    """
    known = banana()
    point, momentum = start(known)
    for scale in metrics(2):
        tril = torch.diag(scale) if scale.dim() == 1 else scale
        inverse_mass = tril @ tril.T
        x, p = point.position, momentum @ torch.linalg.inv(tril)
        for _ in range(5):
            p = p + 0.05 * known.target(x)[1]
            x = x + 0.1 * p @ inverse_mass
            p = p + 0.05 * known.target(x)[1]
        end, turned = Integrator(known.target)(point, momentum, wide(0.1), scale, 5)
        assert torch.allclose(end.position, x, atol=1e-12) and torch.allclose(
            turned, p @ tril, atol=1e-12
        )
        plain = 0.5 * ((p @ inverse_mass) * p).sum(-1)
        assert torch.allclose(0.5 * turned.square().sum(-1), plain, atol=1e-12)


def test_every_chain_has_its_own_step_and_no_steps_are_no_move():
    known = pair()
    point, momentum = start(known, 3)
    steps = torch.tensor([[0.1], [0.3], [-0.2]], dtype=DOUBLE)
    scale = metrics(2)[1]
    end, turned = Integrator(known.target)(point, momentum, steps, scale, 4)
    for c in range(3):
        alone = Point(*(part[c : c + 1] for part in point))
        one, r = Integrator(known.target)(alone, momentum[c : c + 1], steps[c : c + 1], scale, 4)
        assert torch.allclose(end.position[c], one.position[0], atol=1e-14) and torch.allclose(
            turned[c], r[0], atol=1e-14
        )
    same, still = Integrator(known.target)(point, momentum, steps, scale, 0)
    assert torch.equal(same.position, point.position) and still is momentum


def test_a_chain_that_leaves_the_numbers_leaves_the_others_alone():
    known = banana()
    point, momentum = start(known, 3)
    steps = torch.tensor([[0.1], [1e3], [0.1]], dtype=DOUBLE)
    end, turned = Integrator(known.target)(point, momentum, steps, metrics(2)[0], 12)
    alone, r = Integrator(known.target)(point, momentum, wide(0.1, 3), metrics(2)[0], 12)
    assert not end.position[1].isfinite().all()
    assert torch.equal(end.position[[0, 2]], alone.position[[0, 2]]) and torch.equal(
        turned[[0, 2]], r[[0, 2]]
    )


def test_single_precision_stays_single():
    known = banana()
    point, momentum = start(known)
    small = Point(*(part.float() for part in point))
    end, turned = Integrator(known.target)(
        small, momentum.float(), wide(0.1).float(), torch.ones(2), 3
    )
    assert {end.position.dtype, end.value.dtype, end.slope.dtype, turned.dtype} == {torch.float32}


@pytest.mark.slow
@pytest.mark.parametrize("dense", [False, True])
def test_a_compiled_step_gives_the_same_trajectory(dense):
    known = banana()
    point, momentum = start(known)
    scale = metrics(2)[2 if dense else 1]
    compiled, eager = Integrator(known.target, compile=True), Integrator(known.target)
    for step, count in ((0.1, 6), (0.2, 3), (0.1, 0)):
        end, turned = compiled(point, momentum, wide(step), scale, count)
        other, r = eager(point, momentum, wide(step), scale, count)
        assert all(
            torch.allclose(a, b, atol=1e-12)
            for a, b in zip((*end, turned), (*other, r), strict=True)
        )


@pytest.mark.slow
def test_a_compiled_step_sees_what_the_target_refers_to_change():
    """Learned noise moves in place while chains run; a graph that froze it would sample another
    posterior.
    """
    noise = torch.zeros((), dtype=DOUBLE)
    target = differentiable(lambda x: -0.5 * (x * noise.exp()).square().sum(-1))
    position = torch.ones(2, 3, dtype=DOUBLE)
    compiled, eager = Integrator(target, compile=True), Integrator(target)
    for value in (0.0, 1.0, -2.0):
        noise.fill_(value)
        point, momentum = Point.at(target, position), torch.ones_like(position)
        end, _ = compiled(point, momentum, wide(0.1, 2), torch.ones(3, dtype=DOUBLE), 4)
        other, _ = eager(point, momentum, wide(0.1, 2), torch.ones(3, dtype=DOUBLE), 4)
        assert torch.allclose(end.position, other.position, atol=1e-12) and torch.allclose(
            end.value, other.value, atol=1e-12
        )


def test_what_cannot_be_compiled_is_refused_in_one_sentence():
    def target(position):
        scale = 2.0 if float(position.detach().sum()) > 0 else 1.0  # a decision on numbers
        return -scale * position.square().sum(-1), -2 * scale * position

    position = torch.ones(2, 3, dtype=DOUBLE)
    point = Point.at(target, position)
    with pytest.raises(
        SettingError,
        match=r"compile=True: the compiler cannot trace this network \(.*\); use compile=False",
    ):
        Integrator(target, compile=True)(
            point, torch.ones_like(position), wide(0.1, 2), torch.ones(3, dtype=DOUBLE), 1
        )
