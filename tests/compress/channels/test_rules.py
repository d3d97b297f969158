"""What operations do to channels: followed where the table knows them, kept whole where it does
not.
"""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from credo.compress.channels.rules import MODULES, OPERATIONS, analyse

IMAGE = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Between(nn.Module):
    """A convolution, something, and a dense layer that reads what comes out."""

    def __init__(self, between, width):
        super().__init__()
        self.conv, self.between, self.head = (
            nn.Conv2d(3, 4, 3, padding=1),
            between,
            nn.Linear(width, 2),
        )

    def forward(self, x):
        return self.head(self.between(self.conv(x)))


def analysed(between, width, dead=()):
    net = Between(between, width).eval()
    with torch.no_grad():
        net.conv.weight[list(dead)] = 0.0
    units = analyse(net, IMAGE)
    return units, units.dense[-1].reads


PASSED = {
    "flatten": (lambda x: x.flatten(1), 256, 64),
    "torch.flatten": (lambda x: torch.flatten(x, start_dim=1), 256, 64),
    "flatten places": (lambda x: x.flatten(2).flatten(1), 256, 64),
    "view": (lambda x: x.view(-1, 256), 256, 64),
    "reshape": (lambda x: x.reshape(x.size(0), -1), 256, 64),
    "shape": (lambda x: x.reshape(x.shape[0], -1), 256, 64),
    "mean": (lambda x: x.mean((2, 3)), 4, 1),
    "amax": (lambda x: x.amax(-1).amax(-1), 4, 1),
    "sum, kept": (lambda x: x.sum(dim=[2, 3], keepdim=True).flatten(1), 4, 1),
    "last": (lambda x: x.permute(0, 2, 3, 1).mean((1, 2)), 4, 1),
    "channels last": (lambda x: x.permute(0, 2, 3, 1).contiguous(), 4, 1),
    "transpose": (lambda x: x.flatten(2).transpose(1, 2), 4, 1),
    "pooling": (
        lambda x: F.adaptive_avg_pool2d(F.max_pool2d(x, 2), 1).squeeze(-1).squeeze(-1),
        4,
        1,
    ),
    "average": (lambda x: F.avg_pool2d(x, 8)[..., 0:1, 0:1].flatten(1), 4, 1),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=2).mean((2, 3)), 4, 1),
    "activations": (
        lambda x: F.hardswish(F.relu6(x.abs().clamp(min=0.1))).neg().exp().mean((2, 3)),
        4,
        1,
    ),
    "erf": (lambda x: torch.special.erf(x).mean((2, 3)), 4, 1),
    "numbers": (lambda x: (2 * x + 1 - x / 3).mean((2, 3)), 4, 1),
    "dropout": (lambda x: F.dropout(x, 0.5, training=False).mean((2, 3)), 4, 1),
    "new axes": (lambda x: x.mean((2, 3))[:, None, :, None].unsqueeze(1).flatten(1), 4, 1),
    "padding": (lambda x: F.pad(x, (1, 1)).mean((2, 3)), 4, 1),
}


class Apply(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@pytest.mark.parametrize("name", PASSED)
def test_channels_are_followed(name):
    function, width, repeats = PASSED[name]
    units, reads = analysed(Apply(function), width)
    conv = units.dense[0].writes
    assert units.kept_whole == []
    assert torch.equal(reads.units, conv.units.repeat_interleave(repeats))
    assert not reads.constant.any()


@pytest.mark.parametrize("name", PASSED)
def test_constants_are_what_a_run_shows(name):
    """Whatever is called known is the same for all inputs and places; here two channels are, of
    four, save for padding with zeros.
    """
    function, width, repeats = PASSED[name]
    units, reads = analysed(Apply(function), width, dead=(0, 3))
    seen = {}
    units.net.head.register_forward_pre_hook(lambda module, args: seen.update(x=args[0]))
    units.net(torch.cat([IMAGE, IMAGE.flip(2)]))
    rows = seen["x"].double().reshape(-1, width)
    found = rows.amax(0) - rows.amin(0) < 1e-6
    assert torch.equal(
        reads.constant, found & (name != "padding")
    )  # beside a border of zeros the mean is constant, but not seen to be
    torch.testing.assert_close(
        reads.value[reads.constant], rows[0][reads.constant], rtol=1e-5, atol=1e-6
    )


KEPT = {
    "softmax": (lambda x: x.softmax(1).mean((2, 3)), 4),
    "cumsum": (lambda x: x.cumsum(1).mean((2, 3)), 4),
    "batch mean": (lambda x: x.flatten(1).mean(0, keepdim=True), 256),
    "some channels": (lambda x: x[:, :2].flatten(1), 128),
    "one place": (lambda x: x[:, :, 0, 0], 4),
    "odd view": (lambda x: x.view(2, 2, -1).flatten(1), 256),
    "count": (lambda x: (x / x.size(1)).mean((2, 3)), 4),
    "all sizes": (lambda x: x.reshape(x.shape[0], x.shape[1] * 64), 256),
    "squeeze": (lambda x: x.mean((2, 3)).squeeze(), 4),
    "live dropout": (lambda x: F.dropout(x, 0.5).mean((2, 3)), 4),
    "over channels": (lambda x: F.max_pool1d(x.flatten(2).transpose(1, 2), 2).flatten(1), 128),
    "half": (lambda x: x.chunk(2, 1)[0].flatten(1), 128),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_is_not_known_keeps_what_it_reads(name):
    function, width = KEPT[name]
    torch.manual_seed(0)
    units, _ = analysed(Apply(function), width, dead=(0,))
    assert units.kept_whole
    assert units.needed()[units.dense[0].writes.units].all()


def test_layers_that_are_used_twice_tied_or_watched_are_kept_whole():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.b(self.a(self.a(x)).relu())

    twice = analyse(Twice().eval(), torch.zeros(2, 4))
    assert [layer.target for layer in twice.dense] == ["b"]
    tied = nn.Sequential(
        nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)
    ).eval()
    tied[2].weight = tied[0].weight
    assert [layer.target for layer in analyse(tied, torch.zeros(2, 4)).dense] == ["4"]
    tied[4].register_forward_hook(lambda *_: None)
    assert analyse(tied, torch.zeros(2, 4)).dense == []


def test_the_tables_hold_rules_for_what_they_name():
    assert all(issubclass(kind, nn.Module) for kind in MODULES)
    homes = (torch, F, torch.Tensor, __import__("operator"), __import__("builtins"))
    assert all(any(hasattr(home, name) for home in homes) for name in OPERATIONS)
