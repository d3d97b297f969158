"""Which layers have derivatives in factors, what is caught there, and that nothing else is taken
for one.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from zoo.curvature import ALL, MORE, OUTPUT, jacobian, make
from zoo.models import make_model
from zoo.networks import B, Checkpointed

from credo.core.errors import NetworkError
from credo.curvature.taps import (
    caught_numel,
    find_taps,
    gradients,
    layer_jacobians,
    patches,
    prepared,
    tapped,
    untapped,
)

#: Layers with factors by network; everything else has none.
TAPPED = {
    "mlp": ["0", "2"],
    "inplace": ["0", "2", "4"],
    "checkpointed": ["head"],
    "tied": ["out"],
    "shared_layer": ["first", "head"],
    "weight_norm_old": ["0", "2"],  # of the first the bias alone
    "weight_norm_new": ["2"],
    "attention": ["head"],
    "transformer": [
        *(f"encoder.layers.{layer}.linear{n}" for layer in (0, 1) for n in (1, 2)),
        "head",
    ],
    "lstm": ["head"],
    "gru": ["head"],
    "batchnorm": ["0", "3"],
    "conv": ["0", "2", "6"],
    "grouped": ["6"],
    "transposed": ["6"],
    "conv1d": ["0", "4"],
    "embedding": ["head"],
    "sequence": ["head"],
    "dicts": ["a", "b", "head"],
    "matmul": ["head"],
    "custom_function": ["head"],
    "hidden": ["head"],
    "cross_bias": ["head"],
    "grouped_conv": ["head"],
    "reflected": ["head"],
    "standardised": ["head"],
    "weight_normed_conv": ["head"],
    "batch_norm_2d": ["0", "4"],
    "group_norm": ["0", "4"],
    "layer_norm": ["0", "3"],
    "other_use": ["middle", "head"],
    "positions": ["mix", "head"],
    "unused": ["layer", "lost", "head"],
    "pair": ["a", "b"],
    "constant": ["head"],
    "hooked": ["2"],
}


def taps_of(net, x, output=None, random="all"):
    model = make_model(net, random, output=output)
    return model, find_taps(model, model.values(), model.buffers(), x)


def places(model):
    shell = model.shell()
    return {n: shell.placed(n) for n in model.sites}


@pytest.mark.parametrize("name", ALL)
@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_layers_are_tapped_where_factors_are_all_there_is(name):
    net, x = make(name)
    model, taps = taps_of(net, x, OUTPUT.get(name))
    assert list(taps) == TAPPED.get(name, ["layer", "head"])
    known = {n for tap in taps.values() for n in tap.names}
    assert set(untapped(model, taps)) == set(model.random) - known
    for path in taps:
        own, ours = net.get_submodule(path), model.shell().module.get_submodule(path)
        assert len(ours._forward_hooks) == len(own._forward_hooks)
        assert len(ours._forward_pre_hooks) == len(own._forward_pre_hooks)


@pytest.mark.parametrize("name", [name for name in MORE if name not in ("hooked",)])
@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_what_is_caught_gives_the_derivatives(name):
    net, x = make(name)
    model, taps = taps_of(net, x)
    shell = prepared(model, model.values(), model.buffers())
    outputs, caught = tapped(model, shell, taps, x)
    truth, expected = jacobian(net, x, list(model.random))
    torch.testing.assert_close(outputs.detach(), expected)
    axes = torch.eye(2).double()
    grads = [gradients(outputs, caught, axes[k].expand(B, 2), True) for k in range(2)]
    for path, tap in taps.items():
        stacked = torch.stack([g[path] for g in grads], 1)
        assert caught[path].inputs.shape[1] == stacked.shape[2] == tap.places
        for parameter, rows in layer_jacobians(tap, caught[path].inputs, stacked).items():
            torch.testing.assert_close(rows.dense(), truth[parameter])


def test_a_dry_run_leaves_the_weights_in_place_and_no_trace():
    net, x = make("conv")
    model = make_model(net)
    shell = prepared(model, model.values(), model.buffers())
    before = places(model)
    state = torch.get_rng_state()
    find_taps(model, before, model.buffers(), x)
    assert all(
        torch.equal(shell.placed(n), v) and not shell.placed(n).requires_grad
        for n, v in before.items()
    )
    assert torch.equal(state, torch.get_rng_state())
    assert all(p.grad is None and p.requires_grad for p in net.parameters())


def test_only_random_parameters_count():
    net, x = make("mlp")
    for random, names in (("*.bias", [None, "0.bias"]), ("weights", ["0.weight", None])):
        _, taps = taps_of(net, x, random=random)
        assert [taps["0"].weight, taps["0"].bias] == names
    net[0].weight.requires_grad_(False)
    _, taps = taps_of(net, x)
    assert taps["0"].names == ("0.bias",)
    assert list(taps_of(net, x, random="last")[1]) == ["2"]


@pytest.mark.parametrize("steps", [2, 3, 4])
def test_examples_in_the_second_axis_are_never_taken_for_the_first(steps):
    """As many steps as a dry run has examples, or one more."""

    class Time(nn.Module):
        def __init__(self):
            super().__init__()
            self.mix, self.head = nn.Linear(5, 6), nn.Linear(6, 2)

        def forward(self, x):
            return self.head(torch.tanh(self.mix(x.transpose(0, 1))).sum(0))

    assert list(taps_of(Time().double(), torch.randn(3, steps, 5).double())[1]) == ["head"]


def test_one_example_is_enough():
    net, x = make("conv")
    assert list(taps_of(net, x[:1])[1]) == ["0", "2", "6"]


def test_a_layer_that_does_not_reach_the_output_has_derivatives_zero():
    net, x = make("unused")
    model, taps = taps_of(net, x, random="lost.*")
    outputs, caught = tapped(model, prepared(model, model.values(), {}), taps, x)
    assert not outputs.requires_grad  # nothing tapped reaches it
    assert torch.equal(
        gradients(outputs, caught, torch.ones(3, 2), False)["lost"], torch.zeros(3, 1, 2).double()
    )


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_reentrant_checkpoints_are_refused():
    """They would cut the layers inside off, and their curvature would be zero without a word."""
    net = Checkpointed(reentrant=True).double()
    with pytest.raises(
        NetworkError, match="reentrant gradient checkpointing.*pass use_reentrant=False"
    ):
        taps_of(net, torch.randn(3, 5).double())


@pytest.mark.parametrize(
    ("layer", "size"),
    [
        (nn.Conv1d(2, 3, 3, stride=2, padding=1, dilation=2), (2, 9)),
        (nn.Conv2d(2, 3, (3, 2), stride=(1, 2), padding=(2, 1), dilation=(1, 2)), (2, 6, 7)),
        (nn.Conv2d(2, 3, (3, 5), padding="same", dilation=2), (2, 6, 7)),
        (nn.Conv2d(2, 3, 3, padding="valid"), (2, 6, 7)),
        (nn.Conv3d(2, 3, (2, 3, 1), stride=2, padding=(1, 0, 2)), (2, 4, 5, 3)),
    ],
)
def test_a_convolution_is_its_weights_times_patches(layer, size):
    layer, x = layer.double(), torch.randn(4, *size).double()
    out = patches(x, layer) @ layer.weight.flatten(1).mT + layer.bias
    torch.testing.assert_close(out, layer(x).flatten(2).mT)


def test_patches_are_those_of_torch():
    layer, x = (
        nn.Conv2d(2, 3, (3, 2), stride=(1, 2), padding=(2, 1), dilation=(1, 2)),
        torch.randn(4, 2, 6, 7),
    )
    theirs = F.unfold(x, (3, 2), dilation=(1, 2), padding=(2, 1), stride=(1, 2))
    torch.testing.assert_close(patches(x, layer), theirs.mT)


def test_memory_of_what_is_caught():
    net, x = make("conv")  # 36 and 16 places
    model, taps = taps_of(net, x)
    assert [tap.places for tap in taps.values()] == [36, 16, 1]
    assert caught_numel(model, taps) == 36 * 2 * 9 + 16 * 6 * 9 + 6
