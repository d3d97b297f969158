"""Tests of the residual networks."""

import pytest
import torch
from torch import nn

import credo
from credo.core.errors import SettingError
from credo.core.seeds import isolated
from credo.nets import resnet
from credo.nets.resnet import FilterResponse


def test_published_size_and_shape():
    """0.27 M parameters for 20 layers and 0.46 M for 32, as table 6 of He et al. counts them."""
    assert sum(p.numel() for p in resnet().parameters()) == 269_722
    assert sum(p.numel() for p in resnet(depth=32).parameters()) == 464_154
    assert resnet(outputs=7, depth=8, width=4)(torch.zeros(2, 3, 32, 32)).shape == (2, 7)


@pytest.mark.parametrize("depth", [8, 14, 20])
def test_depth_counts_the_layers_with_weights(depth):
    layers = [
        m for m in resnet(depth=depth, width=2).modules() if isinstance(m, (nn.Conv2d, nn.Linear))
    ]
    assert len(layers) == depth


@pytest.mark.parametrize("norm", ["batch", "group", "frn"])
def test_norms_in_both_modes_and_odd_sizes(norm):
    with isolated(0):
        x = torch.randn(3, 1, 9, 7)
        net = resnet(outputs=2, depth=8, width=4, channels=1, norm=norm)
        trained = net.train()(x)
        judged = net.eval()(x)
    assert trained.shape == judged.shape == (3, 2) and bool(trained.isfinite().all())
    assert torch.equal(trained, judged) == (norm != "batch")


def test_only_batch_normalisation_mixes_examples():
    with isolated(0):
        x = torch.randn(4, 3, 8, 8)
        for norm in ("group", "frn"):
            net = resnet(depth=8, width=4, norm=norm)
            torch.testing.assert_close(net(x)[:1], net(x[:1]))


def test_filter_response_is_its_equation():
    layer = FilterResponse(2)
    with torch.no_grad():
        layer.weight.fill_(3.0), layer.bias.fill_(-1.0), layer.threshold.fill_(0.5)
    x = torch.tensor([1.0, -2.0, 2.0, 4.0]).reshape(1, 1, 2, 2).expand(1, 2, 2, 2)
    size = torch.tensor((1.0 + 4.0 + 4.0 + 16.0) / 4)
    torch.testing.assert_close(layer(x), (3.0 * x / (size + 1e-6).sqrt() - 1.0).clamp_min(0.5))
    layer.reset_parameters()
    assert (
        bool((layer.weight == 1).all())
        and not bool(layer.bias.any())
        and not bool(layer.threshold.any())
    )


def test_the_shortcut_thins_out_and_pads():
    """With zero convolutions a stage change leaves every other pixel, and zeros in the new
    channels.
    """
    with isolated(0):
        x = torch.rand(2, 4, 6, 6)
        block = resnet(depth=8, width=4)[3]
    with torch.no_grad():
        for conv in (block.first, block.second):
            conv.weight.zero_()
    out = block.eval()(x)
    assert out.shape == (2, 8, 3, 3) and torch.equal(out[:, 2:6], x[..., ::2, ::2])
    assert float(out[:, :2].abs().sum() + out[:, 6:].abs().sum()) == 0.0


def test_fits_and_vectorises_over_draws():
    with isolated(0):
        x, y = torch.randn(12, 3, 8, 8), torch.arange(12) % 3
        net = resnet(outputs=3, depth=8, width=4)
    bnn = credo.BNN(net).fit((x, y), "map", epochs=2, batch_size=6, lr=1e-2, progress=False)
    stacked = bnn.predict(x, 1).outputs
    assert stacked.shape == (1, 12, 3)
    weights = {
        n: torch.stack([v, 0.5 * v]) for n, v in net.state_dict().items() if v.is_floating_point()
    }
    net.eval()
    both = torch.vmap(lambda w: torch.func.functional_call(net, w, (x,)))(weights)
    torch.testing.assert_close(both[0], net(x))


@pytest.mark.parametrize("depth", [2, 7, 21])
def test_other_depths_are_refused(depth):
    with pytest.raises(SettingError, match=f"depth={depth} is not valid; expected 6 n"):
        resnet(depth=depth)


def test_unknown_norms_are_named_with_the_nearest():
    with pytest.raises(SettingError, match="'grup'.*Did you mean 'group'"):
        resnet(norm="grup")
