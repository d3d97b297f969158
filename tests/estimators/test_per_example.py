"""``per_example`` against weight draws: the same per input for every layer and family, independent
between examples.
"""

import pytest
import torch
from zoo.gradients import looped
from zoo.models import FAMILIES, Passes, agree, make_model, make_posterior
from zoo.networks import Checkpointed, make
from zoo.stats import Z, same_mean

from credo.core.seeds import isolated
from credo.engine.elbo import Elbo
from credo.estimators import estimators
from credo.likelihoods import Gaussian


@pytest.mark.parametrize("kind", [kind for kind in FAMILIES if kind != "samples"])
def test_every_family_on_an_mlp(kind):
    net, x = make("mlp")
    plan = agree(net, x, kind, "per_example", draws=2000)
    assert set(plan.example_axis) == {"0.weight", "2.weight"} and plan.bias == {"0.bias", "2.bias"}


CASES = [
    (name, "mean_field")
    for name in ("conv", "grouped", "transposed", "embedding", "sequence", "conv1d")
]


@pytest.mark.parametrize(
    ("name", "kind"), [*CASES, ("conv", "kron"), ("sequence", "full"), ("conv", "low_rank")]
)
def test_shared_positions(name, kind):
    net, x = make(name)
    plan = agree(net, x, kind, "per_example", draws=1500, reference=4000)
    assert set(plan.example_axis) == {n for n, s in make_model(net).random.items() if s.linear}, (
        "every layer has its own weights"
    )


@pytest.mark.parametrize("kind", ["mean_field", "kron"])
def test_random_weights_with_point_biases(kind):
    net, x = make("mlp")
    assert agree(net, x, kind, "per_example", random="weights", draws=1500).bias == frozenset()


@pytest.mark.parametrize("name", ["tied", "shared_layer", "cross_bias"])
def test_weights_used_beyond_one_linear_map(name):
    net, x = make(name)
    agree(net, x, "mean_field", "per_example", draws=1500)


def correlation_z(name, kind, estimator, n=1500):
    """Largest z value of the correlation between outputs of two equal inputs over passes."""
    net, x = make(name)
    model = make_model(net)
    out = Passes(model, make_posterior(kind, model), estimator, x[:1].expand(2, *x.shape[1:]))(n)
    centred = out - out.mean(0)
    product = centred[:, 0] * centred[:, 1]
    return float((product.mean(0) / (product.std(0) / n**0.5)).abs().max())


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("mlp", "mean_field"),
        ("mlp", "low_rank"),
        ("mlp", "full"),
        ("mlp", "kron"),
        ("mlp", "mixture"),
        ("conv", "mean_field"),
        ("grouped", "mean_field"),
        ("transposed", "mean_field"),
        ("embedding", "mean_field"),
        ("sequence", "mean_field"),
    ],
)
def test_examples_are_independent(name, kind):
    assert correlation_z(name, kind, "per_example") < Z


def test_examples_of_a_weight_draw_are_not():
    assert correlation_z("mlp", "mean_field", "weights") > 2 * Z


def batch(estimator, kind="mean_field", size=32, seed=0):
    net, _ = make("mlp")
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 5, generator=generator, dtype=torch.float64)
    y = torch.randn(size, 2, generator=generator, dtype=torch.float64)
    model = make_model(net, likelihood=Gaussian(std=0.5))
    return Elbo(model, make_posterior(kind, model, 0.2), estimators[estimator]), x, y


@pytest.mark.parametrize("kind", ["mean_field", "full"])
def test_gradients_average_to_those_of_weight_draws(kind):
    ours, theirs = (
        looped(*batch(estimator, kind, size=4), 800, seed)
        for seed, estimator in enumerate(("per_example", "weights"))
    )
    same_mean(ours, theirs)


def test_gradient_variance_falls_from_weights_to_per_example_to_local(capsys):
    """Total variance over 400 gradients of a batch of 32; the gaps are factors, far above the few
    per cent of sampling error.
    """
    names = ("weights", "per_example", "local")
    total = {name: float(looped(*batch(name), 400).var(0).sum()) for name in names}
    with capsys.disabled():
        print(f"\ngradient variance: { {k: round(v, 1) for k, v in total.items()} }")
    assert (
        total["local"] < 0.9 * total["per_example"]
        and total["per_example"] < 0.5 * total["weights"]
    )


@pytest.mark.parametrize("kind", ["mean_field", "low_rank", "full", "kron"])
def test_checkpointed_networks_train_like_plain_ones(kind):
    """A recomputed layer finds the weights it had; a family shared by layers inside and outside the
    checkpoint too.
    """
    _, x = make("checkpointed")
    y = torch.ones(3, 2).double()
    grads = []
    for use in (True, False):
        with isolated(0):
            net = Checkpointed(use).double()
        model = make_model(net, likelihood=Gaussian(std=0.5))
        elbo = Elbo(model, make_posterior(kind, model), estimators["per_example"])
        with isolated(1):
            sum(elbo(x, y)).backward()
        grads.append([p.grad for p in elbo.posterior.parameters()])
    assert all(torch.allclose(a, b, rtol=1e-12, atol=1e-13) for a, b in zip(*grads, strict=True))


def test_the_kl_is_that_of_the_posterior():
    elbo, x, y = batch("per_example")
    other, _, _ = batch("weights")
    assert torch.allclose(elbo(x, y)[1], other(x, y)[1])
