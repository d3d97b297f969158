"""Dense layers and convolutions: what they write is new, and constant where they read constants."""

import pytest
import torch
from torch import nn

from credo.compress.channels import analyse


def test_an_output_that_reads_constants_alone_is_the_constant_it_computes():
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).eval()
    with torch.no_grad():
        net[0].weight[0] = 0.0
        net[0].bias[0] = 2.0
        net[1].weight.copy_(torch.tensor([[3.0, 0.0], [1.0, 1.0]]))
        net[1].bias.copy_(torch.tensor([0.5, 0.0]))
    writes = analyse(net, torch.zeros(1, 2)).dense[1].writes
    assert writes.constant.tolist() == [True, False]
    assert writes.value.tolist() == [6.5, 0.0]


@pytest.mark.parametrize(
    ("layer", "padded"),
    [
        (nn.Conv2d(2, 3, 3), False),
        (nn.Conv2d(2, 3, 3, padding=1), True),
        (nn.Conv2d(2, 3, 3, padding="same"), True),
        (nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), False),
        (nn.ConvTranspose2d(2, 3, 3), True),
    ],
)
def test_zeros_lie_beyond_the_border_of_padded_and_transposed_convolutions(layer, padded):
    units = analyse(nn.Sequential(layer).eval(), torch.zeros(2, 2, 6, 6))
    (found,) = units.dense
    assert found.zero_padded == padded and len(found.writes.units) == 3


def test_a_convolution_in_one_group_per_channel_passes_units_on_and_other_groups_are_unknown():
    x = torch.zeros(2, 4, 6, 6)
    each = analyse(nn.Sequential(nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 3, groups=4)).eval(), x)
    assert torch.equal(each.channelwise[0].layout.units, each.dense[0].writes.units)
    pairs = analyse(nn.Sequential(nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 3, groups=2)).eval(), x)
    assert pairs.kept_whole == ["_1 (Conv2d)"]
