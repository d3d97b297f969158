"""The contract every family keeps; what is special to one is tested in its own file."""

import json

import pytest
import torch
from torch import nn
from zoo.families import GAUSSIAN, MAKERS, MOMENTS, SHAPES
from zoo.stats import has_mean, has_variance, same_mean

from credo.core.errors import CredoError, SettingError
from credo.core.linear_map import bind
from credo.core.seeds import Ambient, Streams, isolated
from credo.core.sites import FlatLayout
from credo.posteriors import Process, families

DRAWS = 20_000


@pytest.fixture(params=GAUSSIAN)
def gaussian(request):
    return MAKERS[request.param]()


@pytest.fixture(params=list(MAKERS))
def family(request):
    return MAKERS[request.param]()


def test_the_registry_holds_every_family():
    over_weights = {name for name, kind in families.items() if not issubclass(kind, Process)}
    assert over_weights == {name.removesuffix("_softplus") for name in MAKERS}
    with pytest.raises(SettingError, match="Did you mean 'mean_field'"):
        families["meanfield"]


@torch.no_grad()
def test_the_mean_is_the_mean_of_draws(family):
    draws, mean = family.draw(Streams(1, range(DRAWS))), family.mean()
    for name in (n for n in SHAPES if n in family.names):  # weights; some families have more
        if name in family.fixed:
            assert torch.equal(draws[name], mean[name].expand_as(draws[name]))
        elif family.name == "flow":  # by definition an average of draws, with their error
            same_mean(draws[name], family.draw(Streams(0, range(1000)))[name])
            assert torch.allclose(mean[name], family.draw(Streams(0, range(1000)))[name].mean(0))
        else:
            has_mean(draws[name], mean[name])


@torch.no_grad()
def test_all_draws_of_a_point_are_its_mean(family):
    assert family.is_point == (family.name in ("delta", "stochastic"))
    if family.is_point:
        assert family.fixed == set(family.names)
        draws, mean = family.draw(Streams(1, range(3))), family.mean()
        assert all(torch.equal(draws[n], mean[n].expand_as(draws[n])) for n in family.names)


@torch.no_grad()
def test_the_mixtures_density_integrates_to_one():
    """Importance sampling from a wider mixture component: E_r[q(w) / r(w)] = 1."""
    mixture, wide = MAKERS["mixture"](), MAKERS["mixture"]()
    for part in wide.parts:
        part.factors[0].raw_std += 0.2
    draws = wide.draw(Streams(0, range(DRAWS)))
    has_mean((mixture.log_prob(draws) - wide.log_prob(draws)).exp(), 1.0)


@torch.no_grad()
def test_state_and_config_rebuild_the_same_draws(family):
    config = json.loads(json.dumps(family.config()))
    other = families[config["name"]].from_config(config)
    other.load_state_dict(family.state_dict())
    ours, theirs = family.draw(Streams(5, range(3))), other.draw(Streams(5, range(3)))
    assert list(ours) == list(theirs) and all(torch.equal(ours[n], theirs[n]) for n in ours)
    assert other.atoms == family.atoms


@torch.no_grad()
def test_a_draw_is_the_same_alone_and_together(family):
    whole = family.draw(Streams(4, range(5)))
    alone = family.draw(Streams(4, [3]))
    assert all(torch.allclose(whole[n][3], alone[n][0], rtol=1e-12, atol=1e-14) for n in whole)


@torch.no_grad()
def test_one_unnumbered_draw_has_the_parameters_shapes(family):
    for noise in (Streams(0), Ambient()):
        with isolated(0):
            draw = family.draw(noise)
        assert {n: t.shape for n, t in draw.items()} == {n: family.shapes[n] for n in family.names}


def monte_carlo(family, op, x_mean, x_var, w, b, draws=DRAWS):
    generator = torch.Generator().manual_seed(0)
    x = x_mean + x_var.sqrt() * torch.randn(
        draws, *x_mean.shape, generator=generator, dtype=torch.float64
    )
    params = family.draw(Streams(9, range(draws)))
    return torch.vmap(lambda x, w, b: op(x, w, b))(x, params[w], params[b])


@torch.no_grad()
@pytest.mark.parametrize("kind", MOMENTS)
def test_moments_through_a_linear_layer_against_monte_carlo(kind):
    gaussian = MAKERS[kind]()
    op = bind(nn.functional.linear, (None, None), {})[0]
    x_mean, x_var = torch.randn(2, 4).double(), torch.rand(2, 4).double()
    mean, var = gaussian.moments(op, x_mean, x_var, "w", "b")
    outputs = monte_carlo(gaussian, op, x_mean, x_var, "w", "b")
    has_mean(outputs, mean)
    has_variance(outputs, var)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["mean_field", "low_rank", "kron"])
def test_moments_through_a_convolution_against_monte_carlo(kind):
    from zoo.models import make_model, make_posterior

    layer = nn.Conv2d(2, 3, 2, padding=1).double()
    family = make_posterior(kind, make_model(layer)).factors[0]
    op = bind(nn.functional.conv2d, (None, None), {"padding": 1})[0]
    x_mean, x_var = torch.randn(1, 2, 2, 2).double(), torch.rand(1, 2, 2, 2).double()
    mean, var = family.moments(op, x_mean, x_var, "weight", "bias")
    outputs = monte_carlo(family, op, x_mean, x_var, "weight", "bias", 10_000)
    has_mean(outputs, mean)
    has_variance(outputs, var)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["mean_field", "low_rank"])
def test_moments_through_an_embedding(kind):
    family = MAKERS[kind]()
    op = bind(nn.functional.embedding, (None, None), {})[0]
    words = torch.tensor([[0, 2, 2]])
    mean, var = family.moments(op, words, torch.zeros(()), "w", None)
    means, variances = family.marginals()
    assert torch.allclose(mean, means["w"][words]) and torch.allclose(var, variances["w"][words])


def test_a_family_without_a_moment_rule_says_so():
    op = bind(nn.functional.linear, (None, None), {})[0]
    with pytest.raises(CredoError, match="'samples' has no rule for moments through linear"):
        MAKERS["samples"]().moments(op, torch.zeros(1, 4), torch.zeros(1, 4), "w", "b")


def test_layout_splits_and_joins():
    layout = FlatLayout({"a": torch.Size((2, 3)), "s": torch.Size(()), "v": torch.Size((4,))})
    assert layout.numel == 11
    vector = torch.randn(5, 11)
    parts = layout.split(vector)
    assert parts["a"].shape == (5, 2, 3) and parts["s"].shape == (5,) and parts["v"].shape == (5, 4)
    assert torch.equal(layout.join(parts), vector)
    assert torch.equal(layout.join(layout.split(vector[0])), vector[0])


@torch.no_grad()
def test_independent_normals_have_the_density_of_the_family(family):
    normals = family.independent_normals()
    if normals is None or family.keep_mask():  # marginals are those before pruning, the density not
        return
    params = family.unpruned_mean()
    total = sum(normals[n].log_prob(params[n]).sum() for n in family.names)
    torch.testing.assert_close(total, family.log_prob(params), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_only_sets_of_draws_have_chains(family):
    assert (family.chains is None) == (family.chain_draws() == {})


def test_only_whole_covariances_are_priors_of_a_regression(family):
    conjugate = family.conjugate_normal()
    assert (conjugate is not None) == (family.name in ("full", "normal_inverse_gamma"))
    if conjugate is not None:
        assert conjugate.mean.dtype == conjugate.tril.dtype == torch.float64
        assert (conjugate.noise is None) == (family.name == "full")
        assert set(conjugate.names) <= set(family.names)
