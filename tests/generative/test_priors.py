"""Priors: densities that integrate to one, draws that follow them, divergences against torch and
Monte Carlo.
"""

import math

import pytest
import torch
from torch.distributions import Independent, MultivariateNormal, Normal, kl_divergence
from zoo.stats import has_mean

from credo.core.errors import DataError, SettingError
from credo.core.seeds import isolated
from credo.generative.codes import Categorical, Diagonal, Flow, Full
from credo.generative.priors import Mixture, NoPrior, StandardNormal, Uniform, Vamp, priors

LIKE = torch.zeros(1, dtype=torch.float64)


def encode(code, seed=0):
    with isolated(seed):
        net = torch.nn.Linear(3, code.width).double()
    return lambda x: code.at(net(x))


def flow():
    with isolated(0):
        return Flow(2, transforms=1, hidden=8).double()


def prior(name, components=4):
    made = priors[name](2, **({} if name == "normal" else {"components": components})).double()
    made.prepare((3,))
    with isolated(1):
        for parameter in made.parameters():
            parameter.data = torch.randn_like(parameter)
    return made.double()


CASES = [
    ("normal", Diagonal(2)),
    ("mixture", Diagonal(2)),
    ("vamp", Diagonal(2)),
    ("vamp", Full(2)),
    ("vamp", "flow"),
]


@pytest.mark.parametrize(("name", "code"), CASES)
def test_densities_integrate_to_one_and_draws_follow_them(name, code):
    made, reader = prior(name), encode(flow() if code == "flow" else code)
    axis = torch.linspace(-14, 14, 401, dtype=torch.float64)
    points, cell = torch.cartesian_prod(axis, axis), float(axis[1] - axis[0]) ** 2
    with torch.no_grad(), isolated(0):
        mass = made.log_prob(points, reader).exp() * cell
        z = made.sample(40_000, reader, LIKE)
    assert float(mass.sum()) == pytest.approx(1.0, abs=1e-6 if code != "flow" else 5e-3)
    assert z.shape == (40_000, 2) and z.dtype == torch.float64
    mass = mass / mass.sum()
    has_mean(z, mass @ points)
    has_mean(z.unsqueeze(-1) * z.unsqueeze(-2), torch.einsum("g,gi,gj->ij", mass, points, points))
    has_mean(
        (z[:, :1] > 0.3).double(), mass[points[:, 0] > 0.3].sum().unsqueeze(0), z=8.0
    )  # the cut falls between cells


@pytest.mark.parametrize(("name", "code"), CASES)
def test_densities_take_leading_axes(name, code):
    made, reader = prior(name), encode(flow() if code == "flow" else code)
    z = torch.randn(5, 3, 2, dtype=torch.float64)
    together = made.log_prob(z, reader)
    assert together.shape == (5, 3)
    torch.testing.assert_close(together, torch.stack([made.log_prob(row, reader) for row in z]))


def test_normal_divergences_are_torchs():
    made = StandardNormal(2)
    at = torch.randn(5, 4, dtype=torch.float64)
    q = Diagonal(2).at(at)
    found = made.divergence(q)
    assert found.shape == (5, 2)
    torch.testing.assert_close(found, kl_divergence(q.base_dist, Normal(0.0, 1.0)))
    full = Full(2).at(torch.randn(5, 5, dtype=torch.float64))
    found = made.divergence(full)
    assert found.shape == (5, 1)
    want = MultivariateNormal(
        torch.zeros(2, dtype=torch.float64), torch.eye(2, dtype=torch.float64)
    )
    torch.testing.assert_close(found.squeeze(-1), kl_divergence(full, want))


def test_normal_density_is_torchs():
    z = torch.randn(6, 3, dtype=torch.float64)
    want = Independent(Normal(torch.zeros(3, dtype=torch.float64), 1.0), 1).log_prob(z)
    torch.testing.assert_close(StandardNormal(3).log_prob(z, encode(Diagonal(3))), want)


def test_uniform_divergence_is_the_expected_log_ratio():
    code = Categorical(2, 3)
    made = Uniform(6, groups=2)
    q = code.at(torch.randn(4, 6, dtype=torch.float64))
    found = made.divergence(q)
    assert found.shape == (4, 2)
    with isolated(0):
        z = q.sample((20_000,))
        has_mean(q.log_prob(z) - made.log_prob(z, None), found.sum(-1))
        drawn = made.sample(20_000, None, LIKE)
    assert torch.equal(
        drawn.unflatten(-1, (2, 3)).sum(-1), torch.ones(20_000, 2, dtype=torch.float64)
    )
    has_mean(drawn, torch.full((6,), 1 / 3, dtype=torch.float64))
    torch.testing.assert_close(
        made.log_prob(drawn[:2], None), torch.full((2,), -2 * math.log(3.0), dtype=torch.float64)
    )


def test_what_has_no_closed_form_says_so():
    q = Diagonal(2).at(torch.randn(4, 4))
    assert Mixture(2).divergence(q) is None and Vamp(2).divergence(q) is None
    with isolated(0):
        assert StandardNormal(2).divergence(Flow(2).at(torch.randn(4, 4))) is None


def test_a_mixture_starts_near_the_standard_normal():
    """50 spread components: what is drawn has mean near 0 and, components and kernel together,
    variance near 2.
    """
    with torch.no_grad(), isolated(0):
        z = Mixture(2).sample(20_000, None, torch.zeros(1))
    assert float(z.mean(0).abs().max()) < 0.15 and 1.5 < float(z.var(0).mean()) < 2.5
    assert torch.equal(Mixture(3).means, Mixture(3).means), "the same at every call"


def test_making_a_mixture_leaves_the_global_generator_alone():
    state = torch.get_rng_state()
    Mixture(4)
    assert torch.equal(state, torch.get_rng_state())


def test_a_mixture_is_all_learned():
    made = Mixture(2, 3)
    assert {name for name, _ in made.named_parameters()} == {"means", "log_stds", "logits"}
    value = made.log_prob(torch.randn(5, 2), None).sum()
    assert all(g.any() for g in torch.autograd.grad(value, list(made.parameters())))


def test_pseudo_inputs_start_as_data_and_are_learned():
    made, x = Vamp(2, 3), torch.randn(5, 3)
    made.prepare((3,))
    made.start(x)
    assert torch.equal(made.inputs.data, x[:3])
    with isolated(0):
        net = torch.nn.Linear(3, 4)
    value = made.log_prob(torch.randn(5, 2), lambda u: Diagonal(2).at(net(u))).sum()
    assert all(g.any() for g in torch.autograd.grad(value, [made.inputs, net.weight]))
    with pytest.raises(
        DataError, match="has 3 pseudo-inputs but there are 2 data; use fewer components"
    ):
        made.start(x[:2])


def test_a_plain_autoencoder_has_nothing_to_sample_from():
    made = NoPrior(2)
    with pytest.raises(SettingError, match="no prior to sample from; use a VAE"):
        made.sample(1, None, LIKE)
    assert not made.log_prob(torch.randn(3, 2), None).any()


@pytest.mark.parametrize("name", ["mixture", "vamp"])
@pytest.mark.parametrize("components", [0, -2, 1.5, True])
def test_bad_components_are_refused(name, components):
    with pytest.raises(SettingError, match="components="):
        priors[name](2, components=components)


def test_far_from_all_components_the_density_is_tiny_and_its_gradient_finite():
    made = Mixture(2, 3)
    z = torch.full((1, 2), 1e3, requires_grad=True)
    value = made.log_prob(z, None)
    assert (
        torch.isfinite(value).all() and torch.isfinite(torch.autograd.grad(value.sum(), z)[0]).all()
    )
