"""Sparse processes against formulas written out, and against exact regression."""

import importlib.util

import pytest
import torch
from torch import nn
from zoo.models import shaken
from zoo.processes import JITTER, exact, kernel, solve, unscaled
from zoo.stats import has_covariance, has_mean, has_variance

from credo.core.errors import CredoError, DataError, NetworkError, SettingError
from credo.core.seeds import generator
from credo.core.shell import Shell
from credo.likelihoods import Gaussian
from credo.posteriors import Posterior, RowNoise, SparseGP
from credo.posteriors.gaussian_process import SparseLayer, given

needs_gpytorch = pytest.mark.skipif(
    importlib.util.find_spec("gpytorch") is None, reason="the gp extra is not installed"
)
ROWS = (
    torch.randn(30, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    * torch.tensor([3.0, 0.2]).double()
)
NEW = torch.randn(7, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def layer(outputs=2, inducing=8, linear=False, rows=ROWS):
    return shaken(SparseLayer.start(rows, outputs, inducing, generator(0), linear=linear))


def process(outputs=2, inducing=8):
    family = SparseGP.start("head", ROWS, outputs, inducing, generator(0))
    shaken(family)
    return family


@torch.no_grad()
def by_hand(layer, rows):
    """Mean and covariance of q(f) from the formulas, with the jitter where gpytorch has it."""
    points, q = unscaled(layer), layer.strategy._variational_distribution
    cover = kernel(layer, points, points) + JITTER * torch.eye(layer.inducing, dtype=torch.float64)
    reach = torch.linalg.solve_triangular(
        torch.linalg.cholesky(cover), kernel(layer, points, rows), upper=False
    )
    spread = q.chol_variational_covar.tril() @ q.chol_variational_covar.tril().mT
    mean = (reach.mT @ q.variational_mean.unsqueeze(-1)).squeeze(-1).mT + layer.mean_module(rows).mT
    change = reach.mT @ (spread - torch.eye(layer.inducing, dtype=torch.float64)) @ reach
    return mean, kernel(layer, rows, rows) + JITTER * torch.eye(
        len(rows), dtype=torch.float64
    ) + change


@needs_gpytorch
@torch.no_grad()
@pytest.mark.parametrize(
    "rows", [NEW, torch.cat([NEW, ROWS])], ids=["few", "many"]
)  # gpytorch has another way where rows are many
def test_values_follow_the_formulas(rows):
    one = layer()
    mean, cover = by_hand(one, rows)
    found, spread = one.joint_at(rows)
    torch.testing.assert_close(found, mean, rtol=0, atol=1e-8)
    torch.testing.assert_close(spread, cover, rtol=0, atol=1e-8)
    found, var = one.marginals_at(rows)
    torch.testing.assert_close(found, mean, rtol=0, atol=1e-8)
    torch.testing.assert_close(var, cover.diagonal(dim1=-2, dim2=-1).mT, rtol=0, atol=1e-8)


@needs_gpytorch
@torch.no_grad()
def test_the_kl_is_that_of_two_normals():
    one = layer()
    q = one.strategy._variational_distribution
    ours = torch.distributions.MultivariateNormal(
        q.variational_mean, scale_tril=_lower(q.chol_variational_covar)
    )
    white = torch.distributions.MultivariateNormal(torch.zeros(8).double(), torch.eye(8).double())
    assert torch.allclose(
        one.own_kl(), torch.distributions.kl_divergence(ours, white).sum(), rtol=1e-9
    )


def _lower(factor):
    """The same covariance with a positive diagonal, as torch wants it."""
    return torch.linalg.cholesky(factor.tril() @ factor.tril().mT)


@needs_gpytorch
@torch.no_grad()
def test_it_starts_at_the_prior():
    one = SparseLayer.start(ROWS, 3, 8, generator(0))
    mean, var = one.marginals_at(NEW)
    assert torch.equal(mean, torch.zeros(7, 3).double()) and abs(float(one.own_kl())) < 1e-9
    torch.testing.assert_close(var, torch.ones(7, 3).double(), rtol=0, atol=2 * JITTER)


@needs_gpytorch
@torch.no_grad()
def test_with_an_inducing_point_per_datum_it_is_exact_regression():
    """At the best q. 1e-4: the jitter moves the covariance of u by 1e-6, and noise of 0.3 makes of
    that no more than a factor of 11 a datum.
    """
    y, std = torch.sin(ROWS[:, :1]) + 5 * ROWS[:, 1:], 0.3
    one = SparseLayer.start(ROWS, 1, 30, generator(0))
    solve(one, ROWS, y, std)
    mean, cover, evidence = exact(one, ROWS, y, std, NEW)
    found, spread = one.joint_at(NEW)
    torch.testing.assert_close(found[:, 0], mean, rtol=0, atol=1e-4)
    torch.testing.assert_close(spread[0], cover, rtol=0, atol=1e-4)
    elbo = float(
        Gaussian(std=std).expected_log_prob(*one.marginals_at(ROWS), y).sum() - one.own_kl()
    )
    assert evidence - 1e-2 < elbo < evidence


@needs_gpytorch
@torch.no_grad()
def test_fewer_inducing_points_loosen_the_bound():
    y, std, bounds = torch.sin(ROWS[:, :1]), 0.3, []
    for inducing in (2, 8, 30):
        one = SparseLayer.start(ROWS, 1, inducing, generator(0))
        solve(one, ROWS, y, std)
        bounds.append(
            float(
                Gaussian(std=std).expected_log_prob(*one.marginals_at(ROWS), y).sum() - one.own_kl()
            )
        )
    assert bounds == sorted(bounds)


@needs_gpytorch
@torch.no_grad()
def test_draws_have_the_covariance():
    family = process()
    mean, cover = family.joint_at(NEW)
    whole = family.outputs(NEW, RowNoise(0, range(4000), len(NEW)), joint=True)
    apart = family.outputs(NEW, RowNoise(0, range(4000), len(NEW)), joint=False)
    for place in range(2):
        has_mean(whole[..., place], mean[:, place])
        has_covariance(whole[..., place], cover[place])
        has_variance(apart[..., place], cover[place].diagonal())
        has_covariance(apart[..., place], torch.diag(cover[place].diagonal()))
    torch.testing.assert_close(family.average(NEW), mean)


@needs_gpytorch
@torch.no_grad()
def test_batches_change_nothing():
    family, noise = process(), RowNoise(0, range(5), len(NEW))
    parts = [family.outputs(NEW[a:b], noise.at(a, b), False) for a, b in ((0, 3), (3, 7))]
    torch.testing.assert_close(torch.cat(parts, 1), family.outputs(NEW, noise, False))


@needs_gpytorch
@torch.no_grad()
def test_rows_are_scaled_to_lengths_of_one():
    rows = torch.cat([ROWS, torch.full((30, 1), 7.0).double()], 1)  # the last number never varies
    one = SparseLayer.start(rows, 1, 30, generator(0))
    scaled = one._scaled(rows)
    assert scaled.mean(0).abs().max() < 1e-12 and bool(
        torch.isfinite(one.marginals_at(rows)[1]).all()
    )
    square = torch.cdist(scaled[:, :2], scaled[:, :2]).square().mean()
    assert torch.allclose(
        square, torch.tensor(2.0 * 2 / 3).double()
    )  # 2 / D of each number that varies
    assert float(SparseLayer.start(torch.ones(4, 2), 1, 5, generator(0)).scale[0]) == 2**0.5


@needs_gpytorch
def test_inducing_points_are_different_rows():
    one = SparseLayer.start(torch.cat([ROWS[:5]] * 3), 1, 30, generator(0))
    assert one.inducing == 5
    assert torch.allclose(unscaled(one).detach().sort(0).values, ROWS[:5].sort(0).values)


@needs_gpytorch
def test_it_is_rebuilt_from_its_description():
    family = process()
    again = Posterior.from_config(Posterior([family]).config())
    again.load_state_dict(Posterior([family]).state_dict(), assign=True)
    noise = RowNoise(0, range(3), len(NEW))
    assert again.process is not None and torch.equal(
        family.outputs(NEW, noise, True), again.process.outputs(NEW, noise, True)
    )
    assert again.config()["families"][0] == {
        "name": "sparse_gp",
        "layer": "head",
        "features": 2,
        "outputs": 2,
        "inducing": 8,
    }


@needs_gpytorch
def test_results_come_in_the_type_of_the_inputs():
    family = process()
    assert family.outputs(NEW.float(), RowNoise(0, range(3), len(NEW)), True).dtype == torch.float32
    assert family.average(NEW.float()).dtype == torch.float32


@needs_gpytorch
def test_what_is_refused():
    with pytest.raises(
        DataError, match=r"takes 2 numbers per example, but these rows have shape \(4, 3\)"
    ):
        process().average(torch.zeros(4, 3))
    with pytest.raises(CredoError, match="no weights to draw"):
        Posterior([process()]).sample(2)
    broken = layer()
    with torch.no_grad():
        broken.strategy.inducing_points.fill_(torch.nan)
    with pytest.raises(
        CredoError, match="8 inducing points has no Cholesky factor .* use a smaller lr"
    ):
        broken.marginals_at(NEW)
    with pytest.raises(CredoError, match="no Cholesky factor"):
        broken.joint_at(NEW)


class Twice(nn.Module):
    """A network that calls its last layer twice, never, on three axes, or by name."""

    def __init__(self, how):
        super().__init__()
        self.how, self.head = how, nn.Linear(2, 2)

    def forward(self, x):
        ways = {
            "twice": lambda: self.head(self.head(x)),
            "never": lambda: x,
            "axes": lambda: self.head(x.unsqueeze(1)),
        }
        return (ways | {"named": lambda: self.head(input=x), "once": lambda: self.head(2 * x)})[
            self.how
        ]()


def test_what_a_layer_is_given():
    net = Twice("once")
    nn.init.constant_(net.head.weight, torch.nan)  # it never runs
    shell = Shell(net)
    assert torch.equal(given(shell, NEW.float(), "head", 5), 2 * NEW.float())
    assert "forward" not in shell.module.get_submodule("head").__dict__
    whole = Shell(nn.Linear(2, 1))
    assert torch.equal(given(whole, NEW, "", 1), NEW)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("twice", "called 2 times"),
        ("never", "called 0 times"),
        ("axes", r"is given \(7, 1, 2\)"),
        ("named", "0 positional and 1 named"),
    ],
)
def test_a_layer_that_no_process_can_replace_is_named(how, message):
    shell = Shell(Twice(how))
    with pytest.raises(NetworkError, match=rf"The last layer, 'head' \(Linear\), .*{message}"):
        given(shell, NEW.float(), "head", 2)
    assert "forward" not in shell.module.get_submodule("head").__dict__


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SettingError, match=r"'gpytorch': pip install 'credo-bayes\[gp\]'"):
        SparseGP("", 2, 1, 4)
