import importlib.util

import pytest
import torch
from torch.distributions import Normal
from zoo.families import make_flow
from zoo.models import shaken
from zoo.stats import Z, follows, has_mean

from credo.core.errors import SettingError
from credo.core.seeds import Streams, isolated
from credo.posteriors import Flow


def flat_flow(kind, size=0.4):
    """A visibly skewed flow over two weights in two parameters."""
    with isolated(0):
        start = Flow.start(
            {"a": torch.tensor([0.5]).double(), "b": torch.tensor(-1.0).double()},
            0.7,
            kind,
            transforms=2,
            hidden=8,
        )
        return shaken(start, size=size)


def grid(kind, n=401):
    reach = {"affine": 12.0, "spline": 6.0}[
        kind
    ]  # splines have narrow bins and are plain normal beyond them
    axis = torch.linspace(-reach, reach, n, dtype=torch.float64)
    a, b = torch.meshgrid(axis, axis, indexing="ij")
    return a.reshape(-1), b.reshape(-1), float(axis[1] - axis[0]) ** 2


@torch.no_grad()
@pytest.mark.parametrize("kind", ["affine", "spline"])
def test_the_density_integrates_to_one(kind):
    """A Riemann sum over a grid that holds all but a negligible part; the step resolves the
    splines' narrowest bins.
    """
    family = flat_flow(kind)
    a, b, area = grid(kind)
    total = family.log_prob({"a": a.unsqueeze(-1), "b": b}).exp().sum() * area
    assert abs(float(total) - 1) < 2e-3


@torch.no_grad()
@pytest.mark.parametrize("kind", ["affine", "spline"])
def test_draws_follow_the_density(kind):
    """Marginal distribution functions from the gridded density against draws, by
    Kolmogorov-Smirnov.
    """
    family = flat_flow(kind)
    a, b, area = grid(kind)
    mass = (family.log_prob({"a": a.unsqueeze(-1), "b": b}).exp() * area).reshape(401, 401)
    axis = a.reshape(401, 401)[:, 0]
    drawn = family.draw(Streams(0, range(4000)))
    for name, marginal in (("a", mass.sum(1)), ("b", mass.sum(0))):
        cdf = (marginal.cumsum(0) - 0.5 * marginal) / marginal.sum()
        from numpy import interp

        follows(drawn[name].reshape(-1), lambda v, cdf=cdf: interp(v, axis.numpy(), cdf.numpy()))


@pytest.mark.parametrize("kind", ["affine", "spline"])
def test_the_density_is_the_change_of_variables(kind):
    """log q(w) = log N(z) - log det dw/dz, with the Jacobian by autograd."""
    family = make_flow(kind)
    z = torch.randn(3, 15, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for row in z:
        jacobian = torch.autograd.functional.jacobian(family.push, row)
        expected = Normal(0.0, 1.0).log_prob(row).sum() - torch.linalg.slogdet(jacobian).logabsdet
        assert torch.allclose(
            family.log_prob(family.layout.split(family.push(row))), expected, rtol=1e-8
        )


@torch.no_grad()
def test_importance_weights_average_to_one():
    """In 15 dimensions, from a wider flow: E_r[q / r] = 1."""
    family, wide = make_flow(), make_flow()
    wide.log_scale += 0.15
    drawn = wide.draw(Streams(0, range(20_000)))
    has_mean((family.log_prob(drawn) - wide.log_prob(drawn)).exp(), 1.0, z=Z)


def test_it_starts_at_the_values_with_the_spread():
    with isolated(0):
        family = Flow.start({"w": torch.full((6,), 3.0).double()}, 0.01)
    drawn = family.draw(Streams(0, range(500)))["w"].detach()
    assert (drawn.mean(0) - 3.0).abs().max() < 0.02 and 0.003 < drawn.std() < 0.03


def test_gradients_reach_everything():
    family = make_flow()
    drawn = family.draw(Streams(0, range(5)))
    family.log_prob(drawn).sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in family.parameters())


def test_one_weight_is_too_few():
    with pytest.raises(SettingError, match="at least two weights to couple"):
        Flow({"w": (1,)})


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SettingError, match=r"'zuko': pip install 'credo-bayes\[flows\]'"):
        Flow({"w": (4,)})


def test_torch_goes_on_validating_distributions():
    """In a fresh process: importing the package switches validation off for everyone."""
    import subprocess
    import sys

    code = (
        "import torch; from torch.distributions import Distribution as D, Normal; from "
        "credo.posteriors import Flow;"
        "before = D.arg_constraints; Flow({'w': (3,)}); assert D.arg_constraints is before; "
        "Normal(0.0, -1.0)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100
    )
    assert "Expected parameter scale" in result.stderr
