"""``local`` against weight draws, input by input, by z-tests (see ``zoo.stats``)."""

import pytest
import torch
from torch import nn
from zoo.models import FAMILIES, Passes, agree, make_model, make_posterior
from zoo.networks import make

MET = ("mean_field", "mean_field_softplus", "low_rank", "kron")


@pytest.mark.parametrize(
    "kind", [kind for kind in FAMILIES if kind != "samples"]
)  # a finite set of points is only ever drawn
def test_every_family_on_an_mlp(kind):
    net, x = make("mlp")
    plan = agree(net, x, kind, "local")
    assert set(plan.example_axis) == ({"0.weight", "2.weight"} if kind in MET else set())


@pytest.mark.parametrize("kind", ["mean_field", "low_rank", "kron"])
def test_random_weights_with_point_biases(kind):
    net, x = make("mlp")
    plan = agree(net, x, kind, "local", random="weights")
    assert plan.bias == frozenset()


@pytest.mark.parametrize(
    "name", ["tied", "shared_layer", "weight_norm_new", "matmul", "cross_bias"]
)
def test_weights_used_beyond_one_linear_map(name):
    net, x = make(name)
    agree(net, x, "mean_field", "local")


@pytest.mark.parametrize("name", ["lstm", "attention"])
def test_composite_functions_are_drawn(name):
    net, x = make(name)
    plan = agree(net, x, "mean_field", "local", draws=1500, vectorise=False)
    assert set(plan.example_axis) == {"head.weight"}


class SharedBias(nn.Module):
    """One bias added by two linear maps."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(5, 2), nn.Linear(5, 2, bias=False)

    def forward(self, x):
        return self.a(x) + nn.functional.linear(x, self.b.weight, self.a.bias)


@pytest.mark.parametrize("estimator", ["local", "flipout"])
@pytest.mark.parametrize("kind", ["mean_field", "kron"])
def test_a_bias_used_twice_is_one_draw(kind, estimator):
    agree(SharedBias().double(), torch.randn(3, 5).double(), kind, estimator)


@pytest.mark.parametrize(("name", "random"), [("conv", "0.*"), ("sequence", "mix.*")])
def test_the_variance_after_pooling_is_understated(name, random):
    """The documented difference: positions are treated as independent, so averaging over them
    averages the noise away.
    """
    net, x = make(name)
    model = make_model(net, random)
    posterior = make_posterior("mean_field", model)
    local = Passes(model, posterior, "local", x)(1000, seed=1).var(0)
    drawn = Passes(model, posterior, "weights", x)(1000, seed=2).var(0)
    assert float((local / drawn).mean()) < 0.7


@pytest.mark.parametrize(
    ("estimator", "different"), [("local", True), ("flipout", True), ("weights", False)]
)
def test_examples_of_a_batch_get_their_own_noise(estimator, different):
    net, x = make("mlp")
    model = make_model(net)
    out = Passes(model, make_posterior("mean_field", model), estimator, x[:1].expand(4, 5))(1)[0]
    assert bool((out[0] != out[1]).any()) is different


def test_gradients_are_finite_where_an_input_is_exactly_zero():
    net, x = make("mlp")
    model = make_model(
        net, random="weights"
    )  # no random bias: the variance of the first layer is exactly zero
    for kind in ("mean_field", "low_rank", "kron"):
        posterior = make_posterior(kind, model)
        Passes(model, posterior, "local", torch.zeros_like(x)).one().sum().backward()
        assert all(
            torch.isfinite(p.grad).all() for p in posterior.parameters() if p.grad is not None
        )


@pytest.mark.parametrize("estimator", ["weights", "local", "flipout"])
@pytest.mark.parametrize("kind", ["mean_field", "low_rank", "kron"])
def test_autocast_runs_in_bfloat16(kind, estimator):
    net, x = make("mlp", dtype=torch.float32)
    model = make_model(net)
    passes = Passes(model, make_posterior(kind, model), estimator, x)
    truth = passes(50)
    with torch.autocast("cpu", torch.bfloat16):
        out = passes(50)
    assert out.dtype == torch.bfloat16 or estimator != "weights"
    # The same seed gives nearly the same noise; bfloat16 has 8 significant bits, and a dozen
    # roundings of values up to 4 add up.
    assert (
        torch.isfinite(out).all()
        and (out.float().std(0) - truth.std(0)).abs().max() < 0.5 * truth.std(0).max()
    )
