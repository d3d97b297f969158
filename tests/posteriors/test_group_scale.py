"""Weights that share scales: groups of every layer, KL against draws, local noise against weight
draws, pruning, save and load.
"""

import json

import pytest
import torch
from torch import nn
from torch.distributions import Normal
from zoo.dropout import cross, outputs
from zoo.models import Passes, make_model, shaken
from zoo.stats import has_mean, has_variance, same_mean, same_variance

from credo.core.errors import CredoError, SettingError
from credo.core.linear_map import bind
from credo.core.seeds import Streams, generator, isolated
from credo.methods.sparse.parts.group_fit import places_of, unit_places
from credo.posteriors import GroupScale, Place, Posterior, families, sampled_kl
from credo.priors import Fixed, horseshoe
from credo.priors.group_prior import GroupPrior

DRAWS = 20_000
PARTS = {
    "normal_jeffreys": {"name": "normal_jeffreys"},
    "horseshoe": {"name": "horseshoe", "tau0": 0.5},
}
W = torch.randn(3, 4, generator=generator("w"), dtype=torch.float64)
B = torch.randn(3, generator=generator("b"), dtype=torch.float64)
SIDES = {
    "input": {"w": Place("w", 1, 1, "input")},
    "output": {"w": Place("w", 0, 1, "output")},
    "units": {"w": Place("w", 0, 1, "output"), "b": Place("w", 0, 1, "output")},
}
KINDS = [(part, side, False) for part in PARTS for side in SIDES] + [
    ("horseshoe", side, True) for side in SIDES
]


def make(part="normal_jeffreys", side="input", centred=False, threshold=1e9, size=0.2):
    values = {"w": W, "b": B} if side == "units" else {"w": W}
    return shaken(
        GroupScale.start(values, SIDES[side], PARTS[part], 0.4, threshold, centred), size=size
    )


def prior_for(family):
    return dict.fromkeys(family.names, GroupPrior(family.scales.label, True))


@torch.no_grad()
@pytest.mark.parametrize(("part", "side", "centred"), KINDS)
def test_mean_and_std_are_those_of_draws(part, side, centred):
    family = make(part, side, centred)
    draws, mean, std = family.draw(Streams(0, range(DRAWS))), family.mean(), family.std()
    for name in family.names:
        has_mean(draws[name], mean[name])
        has_variance(draws[name], std[name] ** 2)


@torch.no_grad()
@pytest.mark.parametrize(("part", "side", "centred"), [k for k in KINDS if k[0] == "horseshoe"])
def test_the_kl_is_the_mean_of_log_ratios_over_all_latents(part, side, centred):
    """p(w given z) = N(0, z^2): v has N(0, 1) where z multiplies it; scales by their own closed
    form, tested on its own.
    """
    family = make(part, side, centred)
    latents = family.latents(Streams(0, range(DRAWS)))
    values = latents if centred else {n: latents[n] for n in family.names}
    log_p = torch.zeros(DRAWS, dtype=torch.float64)
    for name in family.names:
        bank = family.places[name].bank
        z = (
            family.of_group(name, family.scales.scale(bank, latents[f"scales/{bank}"]))
            if centred
            else torch.ones(()).double()
        )
        log_p += Normal(0.0, z).log_prob(values[name]).flatten(1).sum(1)
    scales = {bank: latents[f"scales/{bank}"] for bank in family.scales.counts}
    ratio = family.log_prob(latents) - family.scales.log_prob(scales) - log_p
    has_mean(ratio, family.kl(prior_for(family)) - family.scales.kl())


def test_the_kl_of_the_weights_is_that_to_a_standard_normal():
    family = make()
    q = Normal(family.flat_mean, family.raw_std.exp())
    expected = torch.distributions.kl_divergence(q, Normal(0.0, 1.0)).sum() + family.scales.kl()
    assert torch.allclose(family.kl(prior_for(family)), expected)


def test_other_priors_are_refused_by_name():
    family = make()
    with pytest.raises(
        CredoError, match="The prior of 'w' is .*brings the normal-Jeffreys prior of its groups"
    ):
        family.kl({"w": horseshoe()})
    with pytest.raises(CredoError, match="brings the normal-Jeffreys prior"):
        family.kl({"w": GroupPrior("horseshoe", True)})


def test_dispatch_and_an_earlier_posterior_as_prior():
    family, earlier = make("horseshoe"), make("horseshoe", size=0.1)
    site = make_model(nn.Linear(4, 3).double()).random["weight"]
    factorised = family.prior_from(Fixed(GroupPrior("horseshoe", True)), {"w": site})
    assert torch.equal(family.kl(factorised), family.kl(prior_for(family)))
    assert family.kl(earlier) is None
    with torch.no_grad():
        same = sampled_kl(family, family, Streams(0, range(10)))
        assert torch.allclose(same, torch.zeros(10).double(), atol=1e-9)
        assert float(sampled_kl(family, earlier, Streams(0, range(DRAWS))).mean()) > 0


def test_weights_alone_have_no_density():
    family = make()
    with pytest.raises(
        CredoError,
        match="'group_scale' has no density over weights alone: their scales are not integrated "
        "out",
    ):
        family.log_prob(family.draw(Streams(0)))


@torch.no_grad()
@pytest.mark.parametrize(("part", "side", "centred"), KINDS)
def test_latents_assemble_into_the_draw(part, side, centred):
    family = make(part, side, centred)
    weights, latents = family.draw(Streams(5, range(4))), family.latents(Streams(5, range(4)))
    again = family.assemble(latents)
    assert all(torch.allclose(weights[n], again[n]) for n in family.names) and family.log_prob(
        latents
    ).shape == (4,)


LAYERS = {
    "linear": (lambda: nn.Linear(4, 3), (2, 4), {"input": 4, "output": 3}),
    "conv": (lambda: nn.Conv2d(2, 3, 2), (2, 2, 3, 3), {"input": 2, "output": 3}),
    "grouped": (lambda: nn.Conv1d(4, 6, 2, groups=2), (2, 4, 3), {"input": 4, "output": 6}),
    "transposed": (
        lambda: nn.ConvTranspose1d(4, 6, 2, groups=2),
        (2, 4, 3),
        {"input": 4, "output": 6},
    ),
}


def posterior_of(net, groups, part, centred=False, units=False, random="all"):
    model = make_model(net, random)
    places = unit_places(model.random) if units else places_of(model.random, groups)
    model, values = model.only(places), model.values()
    own = {n: values[n] for n in model.random}
    family = shaken(GroupScale.start(own, places, PARTS[part], 0.3, 1e9, centred))
    return model, model.with_points([family], values), family


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("groups", ["input", "output"])
def test_a_draw_scales_units_of_every_layer(layer, groups):
    """Without noise of v, weights of a unit are scaled alike: scaling what goes in, or what comes
    out, is the same.
    """
    build, shape, counts = LAYERS[layer]
    with isolated(0):
        net, x = build().double(), torch.randn(shape).double()
    _, _, family = posterior_of(net, groups, "normal_jeffreys")
    with torch.no_grad():
        family.raw_std.fill_(-200.0)
        latents = family.latents(Streams(0))
        weight = family.assemble(latents)["weight"]
    z = latents["scales/weight"]
    assert z.shape == (counts[groups],)
    inner = family.layout.split(family.flat_mean.detach())["weight"]
    spatial = [1] * (x.dim() - 2)
    ours, plain = (
        torch.func.functional_call(net, {"weight": w, "bias": 0 * net.bias}, y)
        for w, y in ((weight, x), (inner, x))
    )
    if groups == "input":
        plain = torch.func.functional_call(
            net, {"weight": inner, "bias": 0 * net.bias}, x * z.reshape(-1, *spatial)
        )
    else:
        plain = plain * z.reshape(-1, *spatial)
    assert torch.allclose(ours, plain)
    assert torch.equal(
        Place("w", *family.places["weight"][1:]).sums(torch.ones_like(weight)) * counts[groups],
        torch.full_like(z, weight.numel()),
    )


MIXED = [
    ("linear", "auto"),
    ("conv", "output"),
    ("grouped", "input"),
    ("transposed", "output"),
    ("transposed", "input"),
]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(("layer", "groups"), MIXED)
def test_local_noise_has_the_distribution_of_weight_draws(layer, groups, part):
    """Mean, variance and covariance over outputs at one position of one layer."""
    build, shape, _ = LAYERS[layer]
    with isolated(0):
        net, x = build().double(), torch.randn(shape).double()
    model, posterior, _ = posterior_of(nn.Sequential(net), groups, part)
    passes = Passes(model, posterior, "local", x)
    assert "0.weight" in passes.plan.example_axis
    ours, truth = passes(1500, seed=1), outputs(model, posterior, x, 6000, vectorise=True)
    same_mean(ours, truth)
    same_variance(ours, truth)
    if layer == "linear":
        same_mean(cross(ours), cross(truth))


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("estimator", ["local", "per_example"])
def test_units_with_their_biases_through_a_network(estimator, centred):
    with isolated(0):
        net, x = (
            nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).double(),
            torch.randn(3, 4).double(),
        )
    model, posterior, family = posterior_of(net, "", "horseshoe", centred, units=True)
    assert set(family.names) == {"0.weight", "0.bias", "2.weight", "2.bias"} and not model.point
    ours = Passes(model, posterior, estimator, x)(1500, seed=1)
    truth = outputs(model, posterior, x, 6000, vectorise=True)
    same_mean(ours, truth)
    same_variance(ours, truth)
    same_mean(cross(ours), cross(truth))


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.rnn, self.head = (
            nn.Embedding(7, 4),
            nn.LSTM(4, 3, batch_first=True),
            nn.Linear(3, 2),
        )

    def forward(self, x):
        return self.head(self.rnn(self.words(x))[0][:, -1])


@pytest.mark.parametrize("part", PARTS)
def test_words_and_gates_have_scales_of_their_own(part):
    with isolated(0):
        net, x = Words().double(), torch.randint(0, 7, (3, 5))
    model, posterior, family = posterior_of(net, "auto", part)
    assert family.scales.counts == {
        "words.weight": 7,
        "rnn.weight_ih_l0": 12,
        "rnn.weight_hh_l0": 12,
        "head.weight": 3,
    }
    passes = Passes(model, posterior, "local", x)
    assert set(passes.plan.example_axis) == {"head.weight"}, (
        "words are drawn: one that comes twice has one scale"
    )
    ours, truth = passes(1200, seed=1), outputs(model, posterior, x, 3000)
    same_mean(ours, truth)
    same_variance(ours, truth)


@torch.no_grad()
@pytest.mark.parametrize(("part", "side", "centred"), KINDS)
def test_moments_of_a_dense_layer_against_draws(part, side, centred):
    family = make(part, side, centred)
    op = bind(nn.functional.linear, (None, None), {})[0]
    mean, var = (
        torch.randn(2, 4, generator=generator("m")).double(),
        torch.rand(2, 4, generator=generator("v")).double(),
    )
    out, spread = family.moments(op, mean, var, "w", "b" if side == "units" else None)
    x = mean + var.sqrt() * torch.randn(DRAWS, 2, 4, generator=generator("x"), dtype=torch.float64)
    params = family.draw(Streams(9, range(DRAWS)))
    values = torch.einsum("snk,sok->sno", x, params["w"]) + (
        params["b"].unsqueeze(1) if side == "units" else 0.0
    )
    has_mean(values, out)
    has_variance(values, spread)


@torch.no_grad()
def test_moments_of_words():
    family, words = make(side="output"), torch.tensor([[0, 2, 2]])
    out, spread = family.moments(
        bind(nn.functional.embedding, (None, None), {})[0], words, torch.zeros(()), "w", None
    )
    assert torch.allclose(out, family.mean()["w"][words]) and torch.allclose(
        spread, family.std()["w"][words] ** 2
    )


def drowned(part):
    """Group 1 of four is all noise."""
    family = make(part, threshold=3.0, size=0.0)
    with torch.no_grad():
        if part == "normal_jeffreys":
            family.scales.raw_std[1] = 5.0
        else:
            family.layout.split(family.raw_std)["w"][:, 1] = 5.0
    return family


@pytest.mark.parametrize("part", PARTS)
def test_a_pruned_group_has_mean_zero_in_training_too_and_finite_gradients(part):
    family = drowned(part)
    kept = family.keep_mask()["w"]
    assert kept.shape == (3, 4) and not kept[:, 1].any() and kept[:, [0, 2, 3]].all()
    assert family.groups_kept()["w"].tolist() == [True, False, True, True]
    assert float(family.group_scores()["w"][1].detach()) >= 3.0
    assert not family.mean()["w"][:, 1].any() and family.mean()["w"][:, 0].all()
    monitor = family.monitor()
    assert monitor == {"kept/w": 3.0, "sparsity": pytest.approx(0.25)}
    op = bind(nn.functional.linear, (None, None), {})[0].along_examples(0)
    x = torch.randn(2, 4, generator=generator("x"), dtype=torch.float64)
    with torch.no_grad():
        family.scales.loc[1] = 0.0 if part == "normal_jeffreys" else family.scales.loc[1]
    draw = family.begin(Streams(0))
    draw.prepare()
    total = (
        draw.local(op, x, "w", B, Streams(1)).square().sum()
        + family.draw(Streams(2))["w"].square().sum()
    )
    for gradient in torch.autograd.grad(
        total + family.kl(prior_for(family)), list(family.parameters()), retain_graph=True
    ):
        assert gradient.isfinite().all()
    (gradient,) = torch.autograd.grad(total, family.flat_mean)
    assert family.layout.split(gradient)["w"][:, 1].any() or part == "normal_jeffreys", (
        "it could come back"
    )


def test_a_group_of_zeros_can_start():
    values = {"w": W * torch.tensor([1.0, 0.0, 1.0, 1.0]).double()}
    family = GroupScale.start(values, SIDES["input"], PARTS["horseshoe"], 0.1)
    assert family.flat_mean.isfinite().all() and family.threshold == 3.0
    assert torch.equal(family.bank_sizes({"w": 0 * W})["w"], torch.ones(4).double())


@pytest.mark.parametrize("part", PARTS)
def test_it_starts_at_the_values_with_unit_weights(part):
    family = GroupScale.start({"w": W}, SIDES["input"], PARTS[part], 1e-3)
    assert torch.allclose(family.mean()["w"], W, rtol=1e-3)
    assert torch.allclose(family.flat_mean.square().mean(), torch.ones(()).double())


@pytest.mark.parametrize(("part", "side", "centred"), KINDS)
def test_config_and_state_rebuild_it(part, side, centred):
    family = make(part, side, centred, threshold=2.5)
    config = json.loads(json.dumps(Posterior([family]).config()))
    other = Posterior.from_config(config)
    other.load_state_dict(Posterior([family]).state_dict())
    ours, theirs = Posterior([family]).sample(3), other.sample(3)
    assert all(torch.equal(ours[n], theirs[n]) for n in ours)
    again = other.factors[0]
    assert (
        isinstance(again, GroupScale)
        and again.places == family.places
        and again.threshold == 2.5
        and again.centred == centred
    )
    assert again.scales.config() == family.scales.config()


def test_what_does_not_fit_together_is_refused():
    with pytest.raises(CredoError, match=r"odd: \['b'\]"):
        GroupScale({"w": (3, 4), "b": (3,)}, SIDES["input"], PARTS["horseshoe"])
    with pytest.raises(SettingError, match="centred=True needs"):
        make("normal_jeffreys", centred=True)
    with pytest.raises(SettingError, match="horsehoe"):
        GroupScale({"w": (3, 4)}, SIDES["input"], {"name": "horsehoe"})
    assert families["group_scale"] is GroupScale and len(make().rate_params()) == 2
