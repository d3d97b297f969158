"""Factors on units: where they meet weights, inputs and masks, and that all ways of applying them
are one distribution.

Statistical tests are z-tests with the threshold of ``zoo.stats``, which says their failure rate.
"""

import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Normal
from zoo.dropout import METHODS, agree, begin, make, masks, outputs
from zoo.models import Passes
from zoo.stats import has_mean, has_variance

from credo.core.errors import CredoError
from credo.core.linear_map import bind
from credo.core.seeds import Ambient, Streams, generator
from credo.engine.moment_outputs import moment_outputs
from credo.posteriors import ConcreteDropout, Dropout, GaussianDropout, Places, Posterior

DRAWS = 20_000
#: layer, shape of its input, (axis of the input units, groups)
LAYERS = {
    "linear": (nn.Linear(4, 6), (3, 4), (1, 1)),
    "sequence": (nn.Linear(4, 6), (3, 5, 4), (1, 1)),
    "conv1d": (nn.Conv1d(4, 6, 3, padding=1), (3, 4, 7), (1, 1)),
    "grouped": (nn.Conv2d(4, 6, 3, groups=2), (3, 4, 5, 5), (1, 2)),
    "depthwise": (nn.Conv2d(4, 8, 3, groups=4), (3, 4, 5, 5), (1, 4)),
    "conv3d": (nn.Conv3d(4, 6, 2), (3, 4, 3, 3, 3), (1, 1)),
    "transposed": (nn.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1), (3, 4, 5, 5), (0, 1)),
    "transposed_grouped": (nn.ConvTranspose1d(4, 6, 3, groups=2), (3, 4, 7), (0, 2)),
}


def family_over(layer, axes, rate=0.3):
    values = {n: p.detach().double() for n, p in layer.named_parameters()}
    return Dropout.start(values, Places(axes={"weight": axes}), {"weight": rate})


def makers(values, places, rate=0.3):
    """All kinds of noise on the same places, with rates that differ where they can."""
    rates = dict.fromkeys([*places.axes, *places.masks], rate)
    out = {
        "dropout": Dropout.start(values, places, rates),
        "concrete": ConcreteDropout.start(values, places, rates, "unit", 0.1),
        "gaussian": GaussianDropout.start(values, places, rates, "input", "unit", False),
    }
    if not places.masks:
        out["gaussian_weight"] = GaussianDropout.start(
            values, places, rates, "weight", "weight", False
        )
    with torch.no_grad():
        for name in out.keys() - {"dropout"}:
            for index, raw in enumerate(
                getattr(out[name], "logits" if name == "concrete" else "raw_alpha")
            ):
                raw += 0.5 * torch.randn(raw.shape, generator=generator(index), dtype=raw.dtype)
    return out


def matrix(*shape, seed=0):
    return torch.randn(shape, generator=generator("matrix", seed), dtype=torch.float64)


VALUES = {"w": matrix(3, 4), "b": matrix(3)}
FAMILIES = makers(VALUES, Places(axes={"w": (1, 1)}))


@pytest.mark.parametrize("name", LAYERS)
def test_masking_an_input_is_masking_the_weights_that_read_it(name):
    """op(x * z, W) = op(x, W scaled): the identity that makes dropout on activations a posterior
    over weights.
    """
    layer, shape, axes = LAYERS[name]
    layer = layer.double()
    x, z = matrix(*shape), matrix(4, seed=1)
    channel = x.dim() - 1 if isinstance(layer, nn.Linear) else 1
    expected = layer(x * z.reshape([-1 if axis == channel else 1 for axis in range(x.dim())]))
    family = family_over(layer, axes)
    assert family.unit_shape("weight") == (4,)
    scaled = family.mean()["weight"] * family.over("weight", z)
    found = torch.func.functional_call(layer, {"weight": scaled, "bias": layer.bias}, x)
    assert torch.allclose(found, expected, rtol=1e-12, atol=1e-12)
    several = family.over("weight", torch.stack([z, 2 * z]))
    assert torch.equal(several[1], 2 * family.over("weight", z))


@torch.no_grad()
@pytest.mark.parametrize("kind", FAMILIES)
def test_draws_have_mean_w_and_variance_alpha_w_squared(kind):
    family = FAMILIES[kind]
    draws = family.draw(Streams(0, range(DRAWS)))
    alpha = (
        family.excess("w")
        if kind == "gaussian_weight"
        else family.over("w", family.excess("w").expand(4))
    )
    has_mean(draws["w"], VALUES["w"])
    has_variance(draws["w"], alpha * VALUES["w"] ** 2)
    assert torch.equal(draws["b"], VALUES["b"].expand(DRAWS, 3)) and family.fixed == {"b"}


@torch.no_grad()
def test_all_weights_of_a_unit_share_its_factor():
    for kind, family in FAMILIES.items():
        factors = family.draw(Streams(0, range(50)))["w"] / VALUES["w"]
        shared = torch.allclose(factors, factors[:, :1].expand_as(factors), atol=1e-12)
        assert shared == (kind != "gaussian_weight"), kind
        assert not torch.allclose(factors[..., 0], factors[..., 1])


@torch.no_grad()
def test_a_mask_is_its_own_factors_and_scales_no_weight():
    places = Places(masks={"d.mask0": (1, 4)}, feeds={"w": "d.mask0"})
    for family in makers(VALUES, places).values():
        draws = family.draw(Streams(0, range(DRAWS)))
        assert draws["d.mask0"].shape == (DRAWS, 1, 4) and torch.equal(
            draws["w"], VALUES["w"].expand(DRAWS, 3, 4)
        )
        has_mean(draws["d.mask0"], 1.0)
        has_variance(draws["d.mask0"], family.excess("d.mask0").expand(1, 4))
        assert torch.equal(family.mean()["d.mask0"], torch.ones(1, 4).double())
        assert (
            family.masks == {"d.mask0": (1, 4)}
            and family.fixed == {"w", "b"}
            and family.noise_of == {"w": "d.mask0"}
        )


def test_the_noise_of_a_draw_is_where_it_was_asked_for():
    family = FAMILIES["dropout"]
    assert set(family.begin(Ambient()).weights(["b"])) == {"b"}
    assert family.begin(Ambient((2,))).weights(["b"])["b"].shape == (2, 3)


def test_the_weights_have_no_density():
    for family in FAMILIES.values():
        with pytest.raises(CredoError, match=f"'{family.name}' has no density over weights"):
            family.log_prob(VALUES)
        assert not family.kl_is_bound


NETS = ["dense", "image", "sequence", "residual"]


@pytest.mark.parametrize(
    ("name", "estimator"), [*((name, "local") for name in NETS), ("image", "per_example")]
)
def test_estimators_are_one_distribution_on_own_masks(name, estimator):
    net, x = make(name)
    assert set(agree("concrete_dropout", net, x, estimator, p=0.3, per="unit").example_axis)


@pytest.mark.parametrize(
    ("method", "name", "estimator"),
    [
        ("mc_dropout", "image", "local"),
        ("gaussian_dropout", "sequence", "local"),
        ("gaussian_dropout", "sequence", "per_example"),
        ("variational_dropout", "dense", "local"),
    ],
)
def test_estimators_are_one_distribution_on_input_units(method, name, estimator):
    """Dropout modules are switched off, so that the noise is on the input units of weights."""
    net, x = make(name, p=0.0)
    plan = agree(method, net, x, estimator, p=0.3, layers="all")
    assert len(plan.example_axis) == sum(p.dim() > 1 for p in net.parameters())


def test_noise_on_weights_is_one_distribution_too():
    net, x = make("dense", p=0.0)
    agree("variational_dropout", net, x, "local", p=0.3, layers="all", noise="weight", per="weight")


@torch.no_grad()
@pytest.mark.parametrize("method", METHODS)
def test_every_example_has_its_own_mask_and_its_positions_share_it(method):
    net, x = make("sequence")
    model, posterior = begin(method, net, x, p=0.3)
    passes, seen = Passes(model, posterior, "local", x), []
    mask = dict(passes.shell.module.named_modules())["drop"]
    mask.register_forward_hook(lambda module, args, out: seen.append(out / args[0]))
    passes(20)
    factors = torch.stack(seen)
    assert factors.shape == (20, 3, 6, 6) and torch.allclose(
        factors, factors[:, :, :1].expand_as(factors), atol=1e-9
    )
    assert not torch.allclose(factors[:, 0], factors[:, 1]) and not torch.allclose(
        factors[..., 0], factors[..., 1]
    )


@torch.no_grad()
@pytest.mark.parametrize("kind", FAMILIES)
def test_moments_through_a_layer_against_monte_carlo(kind):
    op = bind(F.linear, (None, None), {})[0]
    mean, var = matrix(2, 4, seed=3), matrix(2, 4, seed=4) ** 2
    out, spread = FAMILIES[kind].moments(op, mean, var, "w", "b")
    x = mean + var.sqrt() * torch.randn(DRAWS, 2, 4, generator=generator(5), dtype=torch.float64)
    draws = FAMILIES[kind].draw(Streams(6, range(DRAWS)))
    values = torch.einsum("sbi,soi->sbo", x, draws["w"]) + draws["b"].unsqueeze(1)
    has_mean(values, out)
    has_variance(values, spread)


POINTWISE = {
    "conv1d": (F.conv1d, nn.Conv1d(4, 6, 1), (1, 1)),
    "grouped": (F.conv1d, nn.Conv1d(4, 6, 1, groups=2), (1, 2)),
    "transposed": (F.conv_transpose1d, nn.ConvTranspose1d(4, 6, 1, groups=2), (0, 2)),
}


@torch.no_grad()
@pytest.mark.parametrize("name", POINTWISE)
def test_moments_through_convolutions_against_monte_carlo(name):
    """Kernels of one position: over a wider one the rule takes the positions of a channel, which
    share a factor, as independent.
    """
    function, layer, axes = POINTWISE[name]
    layer = layer.double()
    op, x = bind(function, (None, None), {"groups": layer.groups})[0], matrix(1, 4, 3)
    for family in makers(
        {n: p.detach() for n, p in layer.named_parameters()}, Places(axes={"weight": axes})
    ).values():
        draws = family.draw(Streams(7, range(4000)))
        out, spread = family.moments(op, x, torch.zeros_like(x), "weight", "bias")
        values = torch.vmap(lambda w, b: op(x, w, b))(draws["weight"], draws["bias"])
        has_mean(values, out)
        has_variance(values, spread)


@torch.no_grad()
def test_moments_of_words_and_masks_and_points():
    words = torch.tensor([[0, 2, 2]])
    op = bind(F.embedding, (None, None), {})[0]
    for family in makers({"w": matrix(3, 4)}, Places(axes={"w": (0, 1)})).values():
        out, spread = family.moments(op, words, torch.zeros(()), "w", None)
        alpha = family.excess("w")
        expected = (alpha if alpha.dim() == 2 else alpha.expand(3).unsqueeze(1).expand(3, 4))[
            words
        ] * matrix(3, 4)[words] ** 2
        assert torch.allclose(out, matrix(3, 4)[words]) and torch.allclose(spread, expected)
    mean, var = matrix(2, 4, seed=3), matrix(2, 4, seed=4) ** 2
    for family in makers(VALUES, Places(masks={"d.mask0": (1, 4)})).values():
        product = bind(torch.mul, (None, None), {})[0]
        out, spread = family.moments(product, mean, var, "d.mask0", None)
        assert torch.equal(out, mean) and torch.allclose(
            spread, var + family.excess("d.mask0") * (mean**2 + var)
        )
        linear = bind(F.linear, (None, None), {})[0]
        out, spread = family.moments(linear, mean, var, "w", "b")
        assert torch.allclose(spread, var @ (VALUES["w"] ** 2).T)


@torch.no_grad()
@pytest.mark.parametrize("places", ["units", "masks"])
@pytest.mark.parametrize("method", ["mc_dropout", "concrete_dropout", "gaussian_dropout"])
def test_the_moments_shortcut_against_sampling(method, places):
    """Exact where noise is before the last layer alone: on its input units, or by a mask that feeds
    it.
    """
    net, x = make("dense", p=0.0 if places == "units" else 0.3)
    model, posterior = begin(method, net, x, p=0.3)
    draws = outputs(model, posterior, x, DRAWS, vectorise=True)
    points = moment_outputs(model, posterior, x, model.buffers(), 50, "diagonal", None)
    has_mean(draws, points.mean(0))
    has_variance(draws, points.var(0, correction=0))


def test_a_mask_over_channels_holds_for_all_entries_they_are_flattened_into():
    """Channels, then pixels: the mask of channel c is that of columns c * 4 to c * 4 + 3 of the
    dense weight.
    """
    net, x = make("image")
    _, posterior = begin("concrete_dropout", net, x, per="unit", p=0.3)
    family = posterior.factors[0]
    assert family.places.feeds == {"3.weight": "2.mask0", "7.weight": "5.mask0"}
    with torch.no_grad():
        family.logit("5.mask0").copy_(torch.arange(4.0).reshape(1, 4, 1, 1) - 2)
    units = family.to_units("7.weight", family.rate("5.mask0"))
    grid = (
        family.rate("5.mask0").expand(1, 4, 2, 2).reshape(1, -1)
    )  # what flattening does to the mask itself
    assert units.shape == (1, 16) and torch.equal(units, grid)
    assert family.to_units("3.weight", family.rate("2.mask0")).shape == (1, 6, 1, 1)


@pytest.mark.parametrize("kind", ["transposed", "grouped"])
def test_unit_rates_of_a_mask_reach_the_weights_that_read_them(kind):
    """E_z[-log p(W z / (1 - p))] under N(0, 1) by enumeration of the masks of four channels."""
    layer, _, axes = LAYERS[kind]
    layer = layer.double()
    values = {n: p.detach() for n, p in layer.named_parameters()}
    own = ConcreteDropout.start(values, Places(axes={"weight": axes}), {"weight": 0.3}, "unit", 0.1)
    fed = ConcreteDropout.start(
        values,
        Places(
            masks={"d.mask0": (1, 4, 1, 1)}, feeds={"weight": "d.mask0"}, fed_axes={"weight": axes}
        ),
        {"d.mask0": 0.3},
        "unit",
        0.1,
    )
    with torch.no_grad():
        own.logit("weight").copy_(torch.tensor([-2.0, -1.0, 0.0, 1.0]))
        fed.logit("d.mask0").copy_(torch.tensor([-2.0, -1.0, 0.0, 1.0]).reshape(1, 4, 1, 1))
    prior = {name: Normal(0.0, 1.0) for name in values}
    rates = own.rate("weight").detach()
    z, mass = masks(rates)
    drawn = values["weight"] * own.over("weight", z / (1 - rates))
    logs = Normal(0.0, 1.0).log_prob(drawn).flatten(1).sum(1)
    exact = -(mass @ logs) - own.entropy() - Normal(0.0, 1.0).log_prob(values["bias"]).sum()
    assert torch.allclose(own.kl(prior), exact, rtol=1e-6)
    assert torch.allclose(fed.kl(prior), exact, rtol=1e-6)


def test_config_and_state_rebuild_masks_and_live_modules():
    places = Places(masks={"d.mask0": (1, 4)}, feeds={"w": "d.mask0"}, noisy_modules=("d", "e.f"))
    for family in makers(VALUES, places).values():
        config = json.loads(json.dumps(Posterior([family]).config()))
        other = Posterior.from_config(config)
        other.load_state_dict(Posterior([family]).state_dict())
        assert (
            other.factors[0].places == family.places
            and other.noisy_modules == {"d", "e.f"}
            and other.fixed == family.fixed
        )
        ours, theirs = Posterior([family]).sample(3), other.sample(3)
        assert ours.keys() == theirs.keys() and all(torch.equal(ours[n], theirs[n]) for n in ours)
