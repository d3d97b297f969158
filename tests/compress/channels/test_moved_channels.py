"""Operations that move channels: concatenation, indexing, and views that become ``flatten``."""

import torch
from torch import nn

from credo.compress.channels import analyse


class Two(nn.Module):
    """Two layers, something that makes one tensor of both results, and a layer that reads it."""

    def __init__(self, join, width):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 2), nn.Linear(4, 3), nn.Linear(width, 1)
        self.join = join

    def forward(self, x):
        return self.c(self.join(self.a(x), self.b(x)))


def test_concatenated_channels_keep_their_order():
    units = analyse(Two(lambda a, b: torch.cat([b, a], 1), 5).eval(), torch.zeros(2, 4))
    first, second, last = units.dense
    assert torch.equal(last.reads.units, torch.cat([second.writes.units, first.writes.units]))


def test_an_index_that_cuts_channels_is_unknown_and_one_that_adds_axes_is_not():
    cut = analyse(Two(lambda a, b: b[:, :2], 2).eval(), torch.zeros(2, 4))
    assert cut.kept_whole == ["getitem (getitem)"]
    wide = analyse(Two(lambda a, b: b[:, None], 3).eval(), torch.zeros(2, 4))
    assert wide.kept_whole == [] and wide.dense[-1].reads.axis == 2


def test_a_view_becomes_flatten_in_the_smaller_network():
    net = Two(lambda a, b: b.view(2, 3), 3).eval()
    units = analyse(net, torch.zeros(2, 4))
    (node,) = units.rewrites
    units.rewrites[node](node, torch.ones(12, dtype=torch.bool))
    assert node.target is torch.flatten and node.args[1] == 1
