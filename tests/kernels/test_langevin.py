import math
from itertools import pairwise

import pytest
import torch
from zoo.chains import gaussian
from zoo.stats import has_covariance, has_mean, has_variance

from credo.kernels.langevin import cyclical, overdamped, underdamped

DOUBLE = torch.float64
CHAINS = 60_000  # the variance's standard error is 0.6 %, so that Z catches 3 %


def overdamped_var(a, step, temperature):
    return temperature / (a * (1 - step * a / 2))


def run(move, position, steps):
    for _ in range(steps):
        position = move(position)
    return position


@pytest.mark.parametrize(
    ("a", "step", "temperature"),
    [(1.0, 0.1, 1.0), (4.0, 0.2, 1.0), (0.5, 1.0, 0.3), (2.0, 0.9, 5.0)],
)
def test_overdamped_steps_have_the_predicted_variance(a, step, temperature):
    """From zero until exp(-2 step a t) < 1e-7, where they are stationary: T / (a (1 - step a /
    2)).
    """
    generator = torch.Generator().manual_seed(0)
    rounds = math.ceil(math.log(1e-7) / (2 * math.log(abs(1 - step * a) + 1e-12)))
    draws = run(
        lambda x: overdamped(x, -a * x, step, temperature, generator),
        torch.zeros(CHAINS, 1, dtype=DOUBLE),
        max(rounds, 3),
    )
    has_mean(draws, 0.0)
    has_variance(draws, overdamped_var(a, step, temperature))
    with pytest.raises(
        AssertionError, match="variance"
    ):  # the step adds variance of its own, and that can be told
        has_variance(draws, temperature / a)


@pytest.mark.parametrize(
    ("a", "step", "friction", "temperature"),
    [
        (1.0, 0.1, 0.1, 1.0),
        (1.0, 0.1, 1.0, 1.0),
        (4.0, 0.5, 0.3, 1.0),
        (0.5, 2.0, 0.05, 0.3),
        (2.0, 1.5, 0.5, 5.0),
    ],
)
def test_underdamped_positions_have_exactly_the_targets_variance(a, step, friction, temperature):
    """At any stable step (step a < 4).

    They start as exact draws with momenta of variance step T, and run long enough to forget that.
    """
    generator = torch.Generator().manual_seed(0)
    position = math.sqrt(temperature / a) * torch.randn(
        CHAINS, 1, generator=generator, dtype=DOUBLE
    )
    momentum = math.sqrt(step * temperature) * torch.randn(
        CHAINS, 1, generator=generator, dtype=DOUBLE
    )
    for _ in range(math.ceil(8 / friction)):
        position, momentum = underdamped(
            position, momentum, -a * position, step, friction, temperature, generator
        )
    has_mean(position, 0.0)
    has_variance(position, temperature / a)


def test_underdamped_chains_find_the_variance_from_elsewhere():
    generator = torch.Generator().manual_seed(0)
    position, momentum = (
        torch.full((CHAINS, 1), 3.0, dtype=DOUBLE),
        torch.zeros(CHAINS, 1, dtype=DOUBLE),
    )
    for _ in range(300):
        position, momentum = underdamped(
            position, momentum, -2.0 * position, 0.3, 0.2, 1.0, generator
        )
    has_mean(position, 0.0)
    has_variance(position, 0.5)


@pytest.mark.parametrize("scheme", ["overdamped", "underdamped"])
@pytest.mark.parametrize("factor", [0.95, 1.06])
def test_noise_of_a_wrong_scale_fails_the_same_test(scheme, factor):
    """Six per cent in the standard deviation are twelve in the variance."""
    generator = torch.Generator().manual_seed(0)
    temperature, step = factor**2, 0.2
    position, momentum = torch.zeros(CHAINS, 1, dtype=DOUBLE), torch.zeros(CHAINS, 1, dtype=DOUBLE)
    for _ in range(100):
        if scheme == "overdamped":
            position = overdamped(position, -position, step, temperature, generator)
        else:
            position, momentum = underdamped(
                position, momentum, -position, step, 0.5, temperature, generator
            )
    with pytest.raises(AssertionError, match="variance"):
        has_variance(position, overdamped_var(1.0, step, 1.0) if scheme == "overdamped" else 1.0)


def test_at_temperature_zero_steps_are_descent_and_draw_nothing():
    generator = torch.Generator().manual_seed(0)
    before = generator.get_state()
    x = torch.linspace(-2, 2, 10, dtype=DOUBLE).reshape(5, 2)
    assert torch.allclose(overdamped(x, -3 * x, 0.1, 0.0, generator), x - 0.3 * x)
    scale = torch.tensor([0.5, 2.0], dtype=DOUBLE)
    assert torch.allclose(overdamped(x, -3 * x, 0.1, 0.0, generator, scale), x - 0.3 * scale * x)
    position, momentum, by_hand, velocity = x, torch.zeros_like(x), x.clone(), torch.zeros_like(x)
    for _ in range(20):
        position, momentum = underdamped(
            position, momentum, -3 * position, 0.1, 0.2, 0.0, generator
        )
        kicked = velocity - 0.1 * 3 * by_hand
        by_hand, velocity = by_hand + 0.5 * kicked + 0.5 * 0.8 * kicked, 0.8 * kicked
        assert torch.allclose(position, by_hand) and torch.allclose(momentum, velocity)
    assert torch.equal(generator.get_state(), before)
    assert float(position.abs().max()) < float(x.abs().max())


def test_a_scale_per_parameter_keeps_the_target():
    """In coordinates whitened by G^-1/2 the precision is A' = G^1/2 A G^1/2, and the covariance T
    (A' (1 - step A' / 2))^-1.
    """
    precision = torch.tensor([[2.0, 0.8], [0.8, 50.0]], dtype=DOUBLE)
    scale, step, temperature = torch.tensor([1.5, 0.05], dtype=DOUBLE), 0.1, 1.0
    generator = torch.Generator().manual_seed(0)
    start = gaussian(torch.linalg.inv(precision)).exact(CHAINS, generator)
    draws = run(
        lambda x: overdamped(x, -x @ precision, step, temperature, generator, scale), start, 80
    )
    root = torch.diag(scale.sqrt())
    inner = root @ precision @ root
    white = torch.linalg.inv(inner @ (torch.eye(2) - step * inner / 2))
    has_covariance(draws, root @ white @ root)
    has_mean(draws, 0.0)
    # a scale on the drift alone would sample something else
    generator.manual_seed(0)
    wrong = run(
        lambda x: x + scale * (overdamped(x, -x @ precision, step, 1.0, generator) - x), start, 80
    )
    with pytest.raises(AssertionError):
        has_covariance(wrong, root @ white @ root)


def test_a_number_as_scale_is_a_larger_step():
    x = torch.ones(4, 1, dtype=DOUBLE)
    one, two = (torch.Generator().manual_seed(0) for _ in range(2))
    assert torch.allclose(overdamped(x, -x, 0.1, 1.0, one, 3.0), overdamped(x, -x, 0.3, 1.0, two))


@pytest.mark.parametrize("batch", [1, 4])
def test_batches_heat_by_the_predicted_amount(batch):
    """Regression y = x w + noise with one weight, batches drawn with replacement.

    About the posterior mean m, u = w - m, the slope of datum i is a_i u + b_i; with A the posterior
    precision and N, B data and batch, v = (1 - step A)^2 v + step^2 N^2 / B (V(a) v + V(b)) + 2
    step T is the variance of u, exactly.
    """
    generator = torch.Generator().manual_seed(0)
    num, std, step = 12, 0.5, 0.008
    x = torch.randn(num, generator=generator, dtype=DOUBLE)
    y = 0.7 * x + std * torch.randn(num, generator=generator, dtype=DOUBLE)
    precision = x.square().sum() / std**2 + 1.0
    mean = (x * y).sum() / std**2 / precision
    a, b = x.square() / std**2, x * (x * mean - y) / std**2
    noise = step**2 * num**2 / batch
    left = (1 - step * precision) ** 2 + noise * a.var(correction=0)
    variance = (noise * b.var(correction=0) + 2 * step) / (1 - left)
    w = torch.full((40_000, 1), float(mean), dtype=DOUBLE)
    for _ in range(math.ceil(math.log(1e-6) / math.log(float(left)))):
        rows = torch.randint(num, (len(w), batch), generator=generator)
        slope = (num / batch) * (x[rows] * (y[rows] - x[rows] * w) / std**2).sum(
            -1, keepdim=True
        ) - w
        w = overdamped(w, slope, step, 1.0, generator)
    has_mean(w, mean)
    has_variance(w, variance)
    full = overdamped_var(float(precision), step, 1.0)
    assert float(variance) > 1.05 * full  # batches do add variance
    with pytest.raises(AssertionError, match="variance"):
        has_variance(w, full)


def test_one_step_has_the_drift_and_the_noise_of_its_formula():
    generator = torch.Generator().manual_seed(0)
    x, slope = (
        torch.full((CHAINS, 1), 0.3, dtype=DOUBLE),
        torch.full((CHAINS, 1), -2.0, dtype=DOUBLE),
    )
    moved = overdamped(x, slope, 0.05, 1.7, generator)
    has_mean(moved, 0.3 - 0.1)
    has_variance(moved, 2 * 0.05 * 1.7)
    position, momentum = underdamped(x, torch.zeros_like(x), slope, 0.05, 0.3, 1.7, generator)
    has_mean(momentum, 0.7 * -0.1)
    has_variance(momentum, (1 - 0.49) * 0.05 * 1.7)
    assert torch.allclose(position - x, 0.5 * -0.1 + 0.5 * momentum)


def test_single_precision_stays_single():
    generator = torch.Generator().manual_seed(0)
    x = torch.zeros(3, 2)
    assert overdamped(x, x, 0.1, 1.0, generator, torch.ones(2)).dtype == torch.float32
    assert {t.dtype for t in underdamped(x, x, x, 0.1, 0.1, 1.0, generator)} == {torch.float32}


def test_the_cosine_starts_at_one_falls_and_starts_over():
    values = [cyclical(index, 10) for index in range(25)]
    assert values[0] == values[10] == values[20] == 1.0 and abs(values[5] - 0.5) < 1e-12
    assert all(a > b > 0 for a, b in pairwise(values[:10]))
    assert (
        values[:10] == values[10:20] and abs(sum(values[:10]) / 10 - 0.55) < 1e-12
    )  # (1 + 1 / period) / 2
    assert cyclical(7, 1) == 1.0
