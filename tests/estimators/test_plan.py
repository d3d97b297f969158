import pytest
import torch
from torch import nn
from zoo.dropout import begin
from zoo.dropout import make as make_dropout
from zoo.models import Passes, make_model, make_posterior
from zoo.networks import Checkpointed, make

from credo.core.errors import NetworkError
from credo.estimators.placement import with_masks
from credo.estimators.plan import example_axis


def plan_of(net, x, estimator="local", train=False, kind="mean_field", **how):
    model = make_model(net, **how)
    return Passes(model, make_posterior(kind, model), estimator, x, train).plan


@pytest.mark.parametrize(
    ("name", "axes"),
    [
        ("mlp", {"0.weight": 0, "2.weight": 0}),
        ("sequence", {"mix.weight": 1, "head.weight": 0}),
        ("embedding", {"embed.weight": 0, "head.weight": 0}),
        ("tied", {"out.weight": 0}),
        ("shared_layer", {"first.weight": 0, "head.weight": 0}),
        ("weight_norm_old", {"2.weight": 0}),
        ("weight_norm_new", {"2.weight": 0}),
        ("matmul", {"head.weight": 0}),
        ("custom_function", {"head.weight": 0}),
        ("hidden", {"head.weight": 0}),
        ("lstm", {"head.weight": 0}),
    ],
)
def test_example_axes_are_found_and_the_rest_is_drawn(name, axes):
    net, x = make(name)
    assert dict(plan_of(net, x).example_axis) == axes


class Flattened(nn.Module):
    """Examples and positions in one axis: no axis of exactly B and B + 1 examples."""

    def __init__(self):
        super().__init__()
        self.mix, self.head = nn.Linear(5, 6), nn.Linear(6, 2)

    def forward(self, x):
        h = torch.tanh(self.mix(x.reshape(-1, x.shape[-1]))).reshape(*x.shape[:2], -1)
        return self.head(h.mean(1))


def test_a_site_met_without_an_example_axis_is_drawn():
    assert dict(plan_of(Flattened().double(), torch.randn(3, 6, 5).double()).example_axis) == {
        "head.weight": 0
    }


def test_an_axis_of_the_same_size_as_the_batch_is_not_taken_for_it():
    net = nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    assert dict(plan_of(net, torch.randn(5, 5).double()).example_axis) == {
        "0.weight": 0,
        "2.weight": 0,
    }


def test_planning_leaves_random_state_and_buffers_as_found():
    net, x = make("batchnorm")
    model = make_model(net)
    before, stats = torch.get_rng_state(), [b.clone() for b in net.buffers()]
    Passes(model, make_posterior("mean_field", model), "local", x, train=True)
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(stats, net.buffers(), strict=True))


def test_reentrant_checkpointing_is_refused():
    _, x = make("checkpointed")
    with pytest.raises(NetworkError, match="use_reentrant=False"):
        plan_of(Checkpointed(reentrant=True).double(), x.requires_grad_(), train=True)


class Closure(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(5, 6), nn.Linear(6, 2)
        inner = self.inner
        self.call = lambda x: torch.tanh(inner(x))

    def forward(self, x):
        return self.head(self.call(x))


@pytest.mark.parametrize("estimator", ["weights", "local", "flipout"])
def test_a_network_hidden_in_a_closure_is_an_error_that_names_the_parameters(estimator):
    with pytest.raises(
        NetworkError, match=r"never reach the network's output: inner\.weight, inner\.bias"
    ):
        plan_of(Closure().double(), torch.randn(3, 5).double(), estimator)


class OwnDict(dict):
    pass


class Wrapped(nn.Module):
    def __init__(self, wrap):
        super().__init__()
        self.layer, self.wrap = nn.Linear(5, 2), wrap

    def forward(self, x):
        return self.wrap(self.layer(x))


class Answer:
    def __init__(self, logits):
        self.logits = logits


@pytest.mark.parametrize("wrap", [lambda t: {"logits": t}, lambda t: OwnDict(logits=t), Answer])
def test_outputs_of_any_container_count(wrap):
    assert set(
        plan_of(Wrapped(wrap).double(), torch.randn(3, 5).double(), output="logits").example_axis
    ) == {"layer.weight"}


def test_nan_of_the_network_itself_is_reported():
    net = nn.Sequential(nn.Linear(5, 2).double())
    with pytest.raises(NetworkError, match="NaN on these inputs even with ordinary weights"):
        plan_of(net, torch.full((3, 5), float("nan")).double())


class Renormed(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(7, 6, max_norm=1.0), nn.Linear(6, 2)

    def forward(self, x):
        return self.head(self.embed(x).mean(1))


@pytest.mark.parametrize("estimator", ["weights", "local", "flipout"])
def test_a_random_embedding_that_renormalises_is_refused(estimator):
    """max_norm rescales rows in place: on a view of the posterior's own numbers, or on a draw that
    autograd still needs.
    """
    with pytest.raises(NetworkError, match=r"'embed' has max_norm=1"):
        plan_of(Renormed().double(), torch.randint(0, 7, (3, 6)), estimator)


@pytest.mark.parametrize("kind", ["mean_field", "delta"])
def test_sparse_gradients_are_refused(kind):
    net = nn.Sequential(nn.Embedding(7, 2, sparse=True), nn.Flatten(1, -1)).double()
    with pytest.raises(NetworkError, match="'0' has sparse gradients.*sparse=False"):
        plan_of(net, torch.randint(0, 7, (3, 6)), "weights", kind=kind)


def test_a_point_embedding_may_renormalise():
    assert dict(
        plan_of(Renormed().double(), torch.randint(0, 7, (3, 6)), random="head.*").example_axis
    ) == {"head.weight": 0}


@pytest.mark.parametrize(
    ("name", "axes"),
    [
        ("dense", {"2.mask0": 0}),
        ("image", {"2.mask0": 0, "5.mask0": 0}),
        ("residual", {"before.mask0": 0, "after.mask0": 0}),
        ("reused", {"drop.mask0": 0, "drop.mask1": 0}),
        (
            "encoder",
            {"layer.dropout.mask0": 0, "layer.dropout1.mask0": 0, "layer.dropout2.mask0": 0},
        ),
    ],
)
def test_masks_are_met_and_what_no_draw_changes_is_not(name, axes):
    net, x = make_dropout(name)
    model, posterior = begin("mc_dropout", net, x)
    assert dict(Passes(model, posterior, "local", x).plan.example_axis) == axes
    assert not Passes(model, posterior, "weights", x).plan.slots


def test_masks_are_sites_beside_the_parameters():
    net, x = make_dropout("image")
    model, posterior = begin("mc_dropout", net, x)
    sites = with_masks(model.random, posterior)
    assert sites.keys() - model.random.keys() == {"2.mask0", "5.mask0"}
    site = sites["5.mask0"]
    assert (
        site.linear
        and site.shape == (1, 4, 1, 1)
        and site.module == "5"
        and site.dtype == torch.float64
        and site.in_axis is None
    )
    assert with_masks(model.random, make_posterior("mean_field", model)) == dict(model.random)


def test_a_dropped_embedding_and_a_recurrent_layer_are_drawn():
    net, x = make("embedding")
    model, posterior = begin("mc_dropout", net, x, layers="all")
    assert dict(Passes(model, posterior, "local", x).plan.example_axis) == {"head.weight": 0}
    net, x = make("lstm")
    model, posterior = begin("mc_dropout", net, x, layers="all")
    assert dict(Passes(model, posterior, "local", x).plan.example_axis) == {"head.weight": 0}


def test_an_example_axis_is_the_only_one_that_grows():
    def size(*shape):
        return torch.Size(shape)

    assert (
        example_axis([size(3, 5)], [size(4, 5)], 3) == 0
        and example_axis([size(6, 3, 5)], [size(6, 4, 5)], 3) == 1
    )
    assert example_axis([size(3, 3)], [size(4, 3)], 3) == 0
    for first, second in (
        ([size(5)], [size(5)]),
        ([size(3, 3)], [size(4, 4)]),
        ([size(6, 5)], [size(8, 5)]),
        ([size(3, 5)], [size(4, 6)]),
    ):
        assert example_axis(first, second, 3) is None
    assert example_axis([], [], 3) is None and example_axis([size(3)] * 2, [size(4)] * 2, 3) is None
    assert example_axis([size(3)], [size(4, 1)], 3) is None
