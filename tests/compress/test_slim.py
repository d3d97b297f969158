"""A slimmed network gives the outputs of the pruned one, has only the units it needs, and is a
module like any other.
"""

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from zoo.slimming import NETS, convolutional, lenet, mlp, normal, pruned

import credo
from credo.compress.cost import count
from credo.compress.pruned import Pruned, prune
from credo.compress.slim import Take, slim
from credo.compress.slim_report import report
from credo.core.errors import NetworkError

SEEDS = range(8)
CLOSE = 1e-5  # of the largest output, in float32: what sums in another order may differ by


@torch.no_grad()
def same(net, other, x, tolerance=CLOSE):
    for a, b in zip(
        *(list(out.values()) if isinstance(out, dict) else [out] for out in (net(x), other(x))),
        strict=True,
    ):
        assert a.shape == b.shape
        assert float((a - b).abs().max()) <= tolerance * max(float(a.abs().max()), 1e-3)


# --- the same function ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", NETS)
def test_outputs_stay_at_other_inputs_and_the_original_is_left_alone(name):
    """Also on twice as many examples as it was slimmed with, none of them seen."""
    make, x = NETS[name]
    other = (
        torch.cat([x, x]).flip(0, -1)
        if not x.is_floating_point()
        else normal(2 * len(x), *x.shape[1:], seed=9)
    )
    sizes = []
    for seed in SEEDS:
        torch.manual_seed(seed)
        net = pruned(make(), seed, share=(0.3, 0.6, 1.0)[seed % 3])
        before = copy.deepcopy(net.state_dict())
        small = slim(net, x)
        same(net, small, other)
        assert not small.training
        assert all(torch.equal(t, before[n]) for n, t in net.state_dict().items())
        assert not {p.data_ptr() for p in small.parameters()} & {
            p.data_ptr() for p in net.parameters()
        }
        sizes.append(count(small, x).parameters / count(net, x).parameters)
    assert (
        max(sizes) <= 1.0
    )  # never more parameters than before: biases that are made stand for weights that went
    assert (min(sizes) < 0.95) != (
        name in ("overwritten", "resnet group")
    )  # where operations on all channels at once leave nothing to take


def test_half_precision_and_doubles():
    x = normal(4, 2, 16)
    for dtype in (torch.float64, torch.bfloat16):
        net = pruned(mlp(), 3).to(dtype)
        small = slim(net, x.to(dtype))
        assert all(p.dtype == dtype for p in small.parameters())
        same(
            net, small, x.to(dtype), 1e-12 if dtype == torch.float64 else 8 * torch.finfo(dtype).eps
        )


# --- exactly what is needed stays -----------------------------------------------------------------


def test_lenet_shrinks_to_the_units_left_and_stays_a_sequence():
    net, x = lenet(), normal(3, 1, 28, 28)
    small = slim(net, x)
    assert type(small) is nn.Sequential and [type(m) for m in small] == [type(m) for m in net]
    assert [tuple(p.shape) for p in small.parameters() if p.dim() > 1] == [
        (5, 1, 5, 5),
        (10, 5, 5, 5),
        (16, 160),
        (10, 16),
    ]
    same(net, small, x)


def test_constants_move_into_the_next_bias_which_is_made_if_there_is_none():
    net = nn.Sequential(nn.Linear(4, 6), nn.Softplus(), nn.Linear(6, 2, bias=False)).eval()
    with torch.no_grad():
        net[0].weight[2:] = 0
    small = slim(net, normal(3, 4))
    assert small[0].out_features == 2 and small[2].bias is not None
    expected = net[2].weight[:, 2:] @ F.softplus(net[0].bias[2:])
    torch.testing.assert_close(small[2].bias, expected)


def test_a_constant_beside_zero_padding_stays_unless_it_is_zero():
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3, padding=1)).eval()
    with torch.no_grad():
        net[0].weight[:2] = 0
        net[0].bias[:2] = torch.tensor([1.0, -1.0])  # after the ReLU the second is zero
    small = slim(net, normal(2, 1, 6, 6))
    assert small[0].out_channels == 3


def test_a_channel_of_a_residual_stream_goes_only_if_no_branch_has_it():
    class Stream(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = (
                nn.Linear(4, 6, bias=False),
                nn.Linear(6, 6, bias=False),
                nn.Linear(6, 2),
            )

        def forward(self, x):
            x = self.a(x)
            return self.c(x + self.b(x))

    net = Stream().eval()
    with torch.no_grad():
        net.a.weight[:2] = 0
        net.b.weight[1:3] = 0
    small = slim(net, normal(3, 4))
    assert small.a.out_features == small.b.out_features == small.c.in_features == 5


def test_units_that_feed_only_themselves_go():
    """Channel 0 is read by its own branch alone: nothing of it reaches the output."""
    cyclic = nn.Sequential(nn.Linear(4, 6), Block(), nn.Linear(6, 2)).eval()
    with torch.no_grad():
        cyclic[1].inner.weight[1:, 0] = 0
        cyclic[2].weight[:, 0] = 0
    small = slim(cyclic, normal(3, 4))
    assert small.get_submodule("0").out_features == 5


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, x):
        return x + self.inner(x)


def test_a_dead_branch_is_not_computed():
    net = nn.Sequential(nn.Linear(4, 6), Block(), nn.Linear(6, 2)).eval()
    with torch.no_grad():
        net[1].inner.weight.zero_()
    small = slim(net, normal(3, 4))
    assert sum(isinstance(m, nn.Linear) for m in small.modules()) == 2
    same(net, small, normal(5, 4, seed=1))
    with torch.no_grad():
        net[1].inner.bias.zero_()
    assert not list(slim(net, normal(3, 4)).buffers())


@pytest.mark.parametrize("dead", [0, 2, 4])
def test_a_network_that_is_constant_still_runs(dead):
    net = nn.Sequential(
        nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)
    ).eval()
    with torch.no_grad():
        net[dead].weight.zero_()
    small = slim(net, normal(3, 4))
    assert [m.out_features for m in small if isinstance(m, nn.Linear)] == [1, 1, 2]
    same(net, small, normal(5, 4, seed=1))


def test_unused_inputs_are_not_read_where_that_pays():
    net = nn.Sequential(nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 3)).eval()
    with torch.no_grad():
        net[1].weight[:, 200:] = 0
    x = normal(3, 1, 28, 28)
    small = slim(net, x)
    assert isinstance(small[1][0], Take) and small[1][1].in_features == 200
    same(net, small, x)
    assert slim(net, x, inputs=False)[1].in_features == 784
    tiny = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 3)).eval()
    with torch.no_grad():
        tiny[0].weight[:, 4:] = 0
    assert isinstance(slim(tiny, normal(3, 8))[0], nn.Linear)


# --- a module like any other ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["convolutional", "residual", "resnet"])
def test_it_pickles_saves_copies_and_prints(name):
    make, x = NETS[name]
    torch.manual_seed(1)
    net = pruned(make(), 1)
    small = slim(net, x)
    file = io.BytesIO()
    torch.save(small, file)
    file.seek(0)
    again = copy.deepcopy(small)
    again.load_state_dict(small.state_dict())
    for other in (
        pickle.loads(pickle.dumps(small)),
        torch.load(file, weights_only=False),
        again,
        slim(small, x),
    ):
        same(small, other, x)
    assert "Conv2d" in repr(small)
    sum(out.sum() for out in [small(x)]).backward()
    assert all(p.grad is not None for p in small.parameters())


def test_a_posterior_is_pruned_first():
    x = normal(40, 6)
    bnn = credo.BNN(nn.Sequential(nn.Linear(6, 30), nn.ReLU(), nn.Linear(30, 2)), "categorical")
    bnn.fit(
        (x, (x[:, 0] > 0).long()),
        "sparse_vd",
        epochs=60,
        lr=2e-2,
        kl_warmup=0,
        kl_schedule="constant",
        progress=False,
    )
    small = slim(bnn, x)
    assert small[0].out_features < 30
    same(prune(bnn).net, small, x)


def test_pruned_networks_and_training_mode():
    net, x = lenet(), normal(2, 1, 28, 28)
    small = slim(Pruned(net, {}, {}, "by hand", 0.0), x)
    assert small[0].out_channels == 5
    busy = pruned(convolutional(), 2).train()
    same(busy.eval(), slim(busy.train(), NETS["convolutional"][1]), NETS["convolutional"][1])


# --- what cannot be done --------------------------------------------------------------------------


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(4, 6), nn.Linear(6, 4)

    def forward(self, x):
        return self.two(self.one(x).relu()) if x.sum() > 0 else self.two(self.one(x))


def test_a_network_that_cannot_be_traced_is_copied_and_said():
    net, x = pruned(Branching()), normal(3, 4)
    with pytest.warns(UserWarning, match="Branching cannot be taken apart"):
        small = slim(net, x)
    same(net, small, x)
    assert "cannot be taken apart" in report(net, small, x, rounds=1).whole[0]


def test_a_part_that_cannot_be_traced_is_kept_whole():
    net = nn.Sequential(
        nn.Linear(4, 8),
        nn.ReLU(),
        nn.Linear(8, 4),
        Branching(),
        nn.Linear(4, 6),
        nn.ReLU(),
        nn.Linear(6, 2),
    ).eval()
    with torch.no_grad():
        for place in (0, 4):
            net[place].weight[2:] = 0
    x = normal(3, 4)
    small = slim(net, x)
    assert [small.get_submodule(n).out_features for n in "046"] == [2, 2, 2]
    same(net, small, x)
    assert report(net, small, x, rounds=1).whole == ("_3 (Branching)",)


def test_a_random_network_is_refused():
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(4, 3)

        def forward(self, x):
            return self.a(x) + torch.rand_like(x[:, :3])

    with pytest.raises(NetworkError, match="same outputs twice"):
        slim(Noisy().eval(), normal(3, 4))
