"""Operations on each channel by itself: statistics, scales of zero, padding and products."""

import torch
from torch import nn
from torch.nn import functional as F

from credo.compress.channels import analyse


def test_batch_statistics_are_no_channelwise_operation():
    net = nn.Sequential(
        nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 2)
    ).eval()
    assert analyse(net, torch.randn(3, 4)).kept_whole == ["_1 (BatchNorm1d)"]


def test_a_scale_of_zero_makes_a_constant_of_any_input():
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)).eval()
    with torch.no_grad():
        net[1].weight[1] = 0
        net[1].bias.copy_(torch.tensor([1.0, 2.0, 3.0]))
    reads = analyse(net, torch.zeros(2, 4)).dense[1].reads
    assert reads.constant.tolist() == [False, True, False] and reads.value.tolist() == [
        0.0,
        2.0,
        0.0,
    ]


def test_padded_channels_are_new_units_with_a_known_value():
    class Padded(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 3), nn.Linear(6, 2)

        def forward(self, x):
            return self.b(F.pad(self.a(x), (1, 2), value=0.5))

    reads = analyse(Padded().eval(), torch.zeros(2, 4)).dense[1].reads
    assert (
        reads.constant.tolist() == [True, False, False, False, True, True]
        and reads.value[reads.constant].tolist() == [0.5] * 3
    )


def test_a_product_with_a_known_zero_is_zero():
    class Product(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 3), nn.Linear(4, 3), nn.Linear(3, 2)

        def forward(self, x):
            return self.c(self.a(x) * self.b(x).relu())

    net = Product().eval()
    with torch.no_grad():
        net.b.weight[:2] = 0
        net.b.bias[:2] = torch.tensor([-1.0, 1.0])
    assert analyse(net, torch.zeros(2, 4)).dense[2].reads.constant.tolist() == [True, False, False]
