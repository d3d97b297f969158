"""Codes against torch's own densities, against their own draws, and on grids."""

import itertools
import math

import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence
from zoo.stats import follows, has_covariance, has_mean, has_variance

from credo.core.errors import CredoError, SettingError
from credo.core.seeds import isolated
from credo.generative.codes import Categorical, Certain, Diagonal, Flow, Full, OneHot, Point, codes

CODES = {
    "diagonal": Diagonal(2),
    "full": Full(2),
    "flow": None,
    "categorical": Categorical(2, 3),
    "point": Point(2),
}


def make(name, dtype=torch.float64):
    if name != "flow":
        return CODES[name]
    with isolated(0):
        return Flow(2, transforms=2, hidden=8).to(dtype)


def numbers(code, n=3, seed=0, dtype=torch.float64):
    return torch.randn(n, code.width, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def grid(low=-14.0, high=14.0, count=561):
    axis = torch.linspace(low, high, count, dtype=torch.float64)
    return torch.cartesian_prod(axis, axis), float(axis[1] - axis[0]) ** 2


@pytest.mark.parametrize("name", CODES)
def test_shapes(name):
    code = make(name)
    z, log_q, q = code.draw(numbers(code), 5) if name != "categorical" else (*_score_draw(code, 5),)
    assert (
        z.shape == (5, 3, code.size)
        and log_q.shape == (5, 3)
        and q.batch_shape == (3,)
        and q.event_shape == (code.size,)
    )
    assert q.mean.shape == (3, code.size) and z.dtype == torch.float64


def _score_draw(code, count):
    q = code.at(numbers(code))
    z = q.sample((count,))
    return z, q.log_prob(z), q


@pytest.mark.parametrize("name", ["diagonal", "full", "flow", "point"])
def test_the_density_that_comes_with_a_draw_is_that_of_q(name):
    code = make(name)
    z, log_q, q = code.draw(numbers(code), 7)
    torch.testing.assert_close(log_q, q.log_prob(z))
    torch.testing.assert_close(log_q, code.density(numbers(code), z))


@pytest.mark.parametrize("name", ["diagonal", "full", "flow"])
def test_densities_integrate_to_one(name):
    code = make(name)
    points, cell = grid()
    with torch.no_grad():
        total = (
            code.at(numbers(code)).log_prob(points.unsqueeze(1).expand(-1, 3, -1)).exp().sum(0)
            * cell
        )
    # A trapezoid rule on a smooth density converges faster than any power of the spacing; the flow
    # has kinks, of order spacing^2.
    torch.testing.assert_close(
        total, torch.ones(3, dtype=torch.float64), rtol=0, atol=1e-8 if name != "flow" else 2e-3
    )


@pytest.mark.parametrize("name", ["diagonal", "full", "flow"])
def test_draws_follow_the_density(name):
    """Mean and second moments of draws against those of the density on a grid."""
    code = make(name)
    at = numbers(code, 1)
    points, cell = grid()
    with torch.no_grad(), isolated(1):
        z, _, q = code.draw(at, 40_000)
        mass = q.log_prob(points.unsqueeze(1)).exp().squeeze(1) * cell
        again = q.sample((40_000,))
    z, again = z.squeeze(1), again.squeeze(1)
    for draws in (z, again):
        has_mean(draws, (mass / mass.sum()) @ points)
        has_mean(
            draws.unsqueeze(-1) * draws.unsqueeze(-2),
            torch.einsum("g,gi,gj->ij", mass / mass.sum(), points, points),
        )


def test_diagonal_is_means_then_raw_deviations():
    at = torch.tensor([[1.0, -2.0, 0.0, 3.0]], dtype=torch.float64)
    q = Diagonal(2).at(at)
    torch.testing.assert_close(q.mean, at[:, :2])
    torch.testing.assert_close(q.stddev, torch.log1p(at[:, 2:].exp()))
    with isolated(0):
        follows(
            q.sample((5000,))[:, 0, 1],
            lambda v: (
                torch.distributions.Normal(-2.0, math.log1p(math.exp(3.0)))
                .cdf(torch.as_tensor(v))
                .numpy()
            ),
        )


def test_full_is_a_cholesky_factor_row_by_row():
    at = torch.tensor([[0.0, 0.0, 0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9]], dtype=torch.float64)
    code = Full(3)
    assert code.width == 9
    spread = torch.log1p(at[0, 3:6].exp())
    want = torch.tensor([[0, 0, 0], [0.5, 0, 0], [0.7, 0.9, 0]], dtype=torch.float64) + torch.diag(
        spread
    )
    q = code.at(at)
    torch.testing.assert_close(q.scale_tril[0], want)
    with isolated(0):
        has_covariance(q.sample((20_000,))[:, 0], want @ want.T)


@pytest.mark.parametrize("latent_dim", [1, 2, 5])
def test_full_of_any_size(latent_dim):
    code = Full(latent_dim)
    assert code.width == 2 * latent_dim + latent_dim * (latent_dim - 1) // 2
    q = code.at(numbers(code))
    assert isinstance(q, MultivariateNormal) and torch.isfinite(kl_divergence(q, q)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["diagonal", "full"])
def test_extreme_numbers_stay_finite(name, dtype):
    """softplus underflows far below zero; a density must not become infinite, nor its gradient
    NaN.
    """
    code = CODES[name]
    for value in (-1e4, -200.0, -90.0, 60.0, 1e4):
        at = torch.full((2, code.width), value, dtype=dtype)
        at[:, :2] = 1.0
        at[:, 4:] = 0.0
        at.requires_grad_(True)
        z, log_q, q = code.draw(at, 4)
        assert torch.isfinite(z).all() and torch.isfinite(log_q).all()
        (grad,) = torch.autograd.grad(log_q.sum() + z.sum(), at)
        assert torch.isfinite(grad).all(), value


@pytest.mark.parametrize("name", ["diagonal", "full", "flow", "point", "categorical"])
def test_the_density_without_gradients_to_whatever_made_it(name):
    code = make(name)
    at = numbers(code).requires_grad_(True)
    z = torch.zeros(3, code.size, dtype=torch.float64, requires_grad=True)
    value = code.density(at, z).sum()
    leaves = [at, *code.parameters()]
    if value.requires_grad:
        grads = torch.autograd.grad(value + 0.0 * z.sum(), leaves, allow_unused=True)
        assert all(g is None or not g.any() for g in grads), (
            "the density still depends on what made it"
        )


def test_a_flow_is_made_by_the_numbers_and_its_transform():
    code = make("flow")
    at = numbers(code).requires_grad_(True)
    z, log_q, q = code.draw(at, 2)
    assert all(
        g.any()
        for g in torch.autograd.grad(log_q.sum() + z.square().sum(), [at, *code.parameters()])
    )
    torch.testing.assert_close(q.mean, q.transform(q.base.mean))


def test_a_flow_in_float64_from_encoders_in_float64():
    z, log_q, _ = make("flow").draw(numbers(make("flow")), 2)
    assert z.dtype == log_q.dtype == torch.float64


def test_one_hot_probabilities_by_enumeration():
    code = Categorical(2, 3)
    q = code.at(numbers(code))
    eye = torch.eye(3, dtype=torch.float64)
    every = torch.stack(
        [torch.cat([eye[i], eye[j]]) for i, j in itertools.product(range(3), repeat=2)]
    )
    table = q.log_prob(every.unsqueeze(1).expand(-1, 3, -1)).exp()
    torch.testing.assert_close(table.sum(0), torch.ones(3, dtype=torch.float64))
    torch.testing.assert_close(torch.einsum("cn,cd->nd", table, every), q.mean)
    torch.testing.assert_close(q.entropy_each().sum(-1), -(table * table.log()).sum(0))
    torch.testing.assert_close(
        q.entropy_each(),
        torch.distributions.Categorical(logits=numbers(code).unflatten(-1, (2, 3))).entropy(),
    )
    with isolated(0):
        z = q.sample((20_000,))
    assert torch.equal(
        z.unflatten(-1, (2, 3)).sum(-1), torch.ones(20_000, 3, 2, dtype=torch.float64)
    ) and set(z.unique().tolist()) == {0.0, 1.0}
    has_mean(z.flatten(1), q.mean.flatten())
    has_mean(
        (z[:, :, :3].unsqueeze(-1) * z[:, :, 3:].unsqueeze(-2)).flatten(1),
        torch.einsum("ni,nj->nij", q.mean[:, :3], q.mean[:, 3:]).flatten(),
    )


def test_mode_and_variance_of_one_hot():
    q = OneHot(torch.tensor([[[0.0, 3.0, 1.0]]]))
    assert q.mode.tolist() == [[0.0, 1.0, 0.0]]
    with isolated(0):
        has_variance(q.sample((20_000,))[:, 0], q.variance[0])


def test_relaxed_draws_become_one_hot_as_the_temperature_falls_and_flat_as_it_rises():
    code = Categorical(2, 3)
    q = code.at(numbers(code))
    with isolated(0):
        cold, hot = q.relaxed((4000,), 1e-3), q.relaxed((4000,), 1e4)
    torch.testing.assert_close(
        cold.unflatten(-1, (2, 3)).sum(-1), torch.ones(4000, 3, 2, dtype=torch.float64)
    )
    # Two Gumbel-perturbed logits are within 0.02 of each other with probability below 1/100.
    assert float((cold.max(-1).values > 1 - 1e-6).double().mean()) > 0.97
    has_mean((cold > 0.5).double().flatten(1), q.mean.flatten())
    assert float((hot - 1 / 3).abs().max()) < 0.01


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_very_sure_logits_stay_finite(dtype):
    at = torch.tensor([[1e4, 0.0, -1e4]], dtype=dtype).requires_grad_(True)
    q = Categorical(1, 3).at(at)
    with isolated(0):
        z = q.relaxed((2000,), 0.1)
    assert torch.isfinite(z).all() and torch.isfinite(q.log_prob(q.sample((5,)))).all()
    (grad,) = torch.autograd.grad(z.sum() + q.entropy_each().sum(), at)
    assert torch.isfinite(grad).all()


def test_a_point_is_certain():
    q = Point(2).at(numbers(Point(2)))
    assert (
        isinstance(q, Certain)
        and torch.equal(q.sample((4,))[2], q.mean)
        and not q.variance.any()
        and not q.log_prob(q.sample((4,))).any()
    )


@pytest.mark.parametrize("latent_dim", [0, -1, 1.5, True, "2"])
@pytest.mark.parametrize("name", ["diagonal", "full", "categorical", "point", "flow"])
def test_bad_sizes_are_refused(name, latent_dim):
    with pytest.raises(SettingError, match="latent_dim"):
        codes[name](latent_dim)


@pytest.mark.parametrize("categories", [1, 0, 2.0, True])
def test_bad_categories_are_refused(categories):
    with pytest.raises(SettingError, match="categories"):
        Categorical(2, categories)


@pytest.mark.parametrize("arguments", [{"transforms": 0}, {"hidden": 0}, {"transforms": 1.5}])
def test_bad_flows_are_refused(arguments):
    with pytest.raises(SettingError):
        Flow(2, **arguments)


def test_a_flow_of_one_variable_is_refused():
    with pytest.raises(SettingError, match="at least two latent variables"):
        Flow(1)
    with pytest.raises(CredoError, match="Unknown latent posterior"):
        codes["gaussian"]
