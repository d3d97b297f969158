"""Tests of the layer with a limited code; z-tests as in ``zoo.stats``."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.distributions import Independent, Normal, kl_divergence
from zoo.stats import has_mean, has_variance

from credo.core.errors import SettingError
from credo.core.shell import Shell
from credo.nets import Bottleneck
from credo.nets.bottleneck import bottlenecks, recorded


def layer(*sizes, **how):
    torch.manual_seed(0)
    return Bottleneck(*sizes, **how).double()


def inputs(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def closed(bottleneck, x):
    """By torch's own divergence of two products of normals, summed over positions."""
    mean, std = bottleneck.encode(x)
    axes = tuple(range(1, x.dim() - 1))
    each = kl_divergence(
        Independent(Normal(mean, std), 1),
        Independent(Normal(torch.zeros_like(mean), torch.ones_like(std)), 1),
    )
    return each.sum(axes) if axes else each


@pytest.mark.parametrize("shape", [(7, 5), (7, 3, 5), (7, 2, 3, 5), (5,)])
def test_kl_is_the_closed_form_summed_over_units_and_positions(shape):
    bottleneck, x = layer(5, 4), inputs(*shape)
    z = bottleneck(x)
    assert z.shape == (*shape[:-1], 4) and bottleneck.kl.shape == shape[:-1][:1]
    torch.testing.assert_close(bottleneck.kl, closed(bottleneck, x))


def test_its_gradient_is_the_closed_forms():
    bottleneck, x = layer(5, 4), inputs(7, 5)
    bottleneck(x)
    ours = torch.autograd.grad(bottleneck.kl.sum(), list(bottleneck.parameters()))
    theirs = torch.autograd.grad(closed(bottleneck, x).sum(), list(bottleneck.parameters()))
    torch.testing.assert_close(ours, theirs)


def test_draws_in_training_and_the_mean_in_evaluation():
    bottleneck, x = layer(5, 4), inputs(3, 5)
    with torch.no_grad():
        mean, std = bottleneck.encode(x)
        draws = torch.stack([bottleneck(x) for _ in range(4000)])
        has_mean(draws, mean)
        has_variance(draws, std.square())
        bottleneck.eval()
        assert torch.equal(bottleneck(x), mean) and bottleneck.kl is None


def test_every_example_has_its_own_draw():
    bottleneck = layer(5, 4)
    x = inputs(1, 5).expand(6, 5)
    assert len(bottleneck(x).detach().unique(dim=0)) == 6


@pytest.mark.parametrize("init_std", [0.01, 0.5, 2.0])
def test_the_spread_starts_near_what_is_asked_for(init_std):
    """At x = 0 only the bias of torch's linear layer is left, at most 1 / sqrt(in_features), and
    softplus has slope below 1.
    """
    bottleneck = layer(400, 50, init_std=init_std)
    _, std = bottleneck.encode(torch.zeros(1, 400, dtype=torch.float64))
    assert (std - init_std).abs().max() <= 400**-0.5 + 1e-12
    assert (std / init_std - 1).abs().max() < 0.06


def test_the_kl_is_finite_where_the_spread_underflows():
    bottleneck = Bottleneck(1, 1)
    with torch.no_grad():
        bottleneck.numbers.weight.zero_()
        bottleneck.numbers.bias.fill_(-1e4)
    bottleneck(torch.ones(2, 1))
    bottleneck.kl.sum().backward()
    assert bottleneck.kl.isfinite().all() and all(
        p.grad.isfinite().all() for p in bottleneck.parameters()
    )


def test_a_loss_of_ones_own_can_use_it():
    net = nn.Sequential(nn.Linear(5, 6), layer(6, 2).float(), nn.Linear(2, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    x = inputs(32, 5).float()
    rates = []
    for _ in range(100):
        loss = (net(x) - x[:, :1]).square().mean() + 10.0 * net[1].kl.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rates.append(float(net[1].kl.detach().mean()))
    assert rates[-1] < 0.1 * rates[0]


def test_a_used_layer_can_be_copied_pickled_and_shelled():
    net = nn.Sequential(layer(5, 4))
    net(inputs(3, 5))
    assert net[0].kl is not None
    for other in (copy.deepcopy(net), Shell(net).module, pickle.loads(pickle.dumps(net))):
        assert other[0].kl is None and torch.equal(other[0].numbers.weight, net[0].numbers.weight)
    assert net[0].kl is not None  # the original keeps its own


def test_bottlenecks_are_found_by_path_and_a_shared_one_once():
    shared = Bottleneck(4, 4)
    net = nn.Sequential(nn.Linear(4, 4), shared, nn.Sequential(nn.ReLU(), Bottleneck(4, 2)), shared)
    assert list(bottlenecks(net)) == ["1", "2.1"] and bottlenecks(net)["1"] is shared
    assert bottlenecks(nn.Linear(2, 2)) == {}


def test_recording_sees_every_call_and_leaves_nothing():
    shared = layer(4, 4)
    net = nn.Sequential(shared, nn.Tanh(), shared, layer(4, 2))
    with recorded(net) as calls:
        net(inputs(6, 4))
    assert len(calls) == 3 and all(kl.shape == (6,) for kl in calls)
    assert all(m.kl is None and m.calls is None for m in bottlenecks(net).values())
    net.eval()
    with recorded(net) as calls:
        net(inputs(6, 4))
    assert calls == []
    with pytest.raises(ZeroDivisionError), recorded(net):
        raise ZeroDivisionError
    assert shared.calls is None


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"in_features": 0, "latent_dim": 2}, "in_features=0"),
        ({"in_features": 3, "latent_dim": 2.0}, "latent_dim=2.0"),
        ({"in_features": 3, "latent_dim": 2, "init_std": 0.0}, "init_std=0.0"),
        ({"in_features": 3, "latent_dim": 2, "init_std": float("nan")}, "init_std=nan"),
        ({"in_features": 3, "latent_dim": 2, "init_std": "wide"}, "init_std='wide'"),
    ],
)
def test_bad_sizes_are_named(given, named):
    with pytest.raises(SettingError, match=f"Bottleneck: {named} is not valid"):
        Bottleneck(**given)


def test_it_says_what_it_is():
    assert "in_features=3, latent_dim=2, init_std=0.5" in repr(Bottleneck(3, 2))
