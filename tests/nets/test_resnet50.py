"""Tests of the residual network at ImageNet's size."""

import pytest
import torch
from torch import nn

from credo.core.errors import SettingError
from credo.core.seeds import isolated
from credo.nets import resnet50
from credo.nets.resnet50 import BottleneckBlock


@pytest.fixture(scope="module")
def net():
    with isolated(0):
        return resnet50().eval()


def test_published_size_and_shape(net):
    assert sum(p.numel() for p in net.parameters()) == 25_557_032
    layers = [m for m in net.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    assert len(layers) - 4 == 50  # without the projections of four shortcuts
    with torch.no_grad():
        assert net(torch.zeros(2, 3, 64, 64)).shape == (2, 1000)


def test_sizes_fall_from_224_to_7_as_published(net):
    sizes, x = [], torch.zeros(1, 3, 224, 224, device="meta")
    with isolated(0), torch.device("meta"):
        same = resnet50().eval()
    for layer in same:
        x = layer(x)
        if x.dim() == 4 and (not sizes or sizes[-1] != tuple(x.shape[1:3])):
            sizes.append(tuple(x.shape[1:3]))
    assert sizes == [(64, 112), (64, 56), (256, 56), (512, 28), (1024, 14), (2048, 7), (2048, 1)]


def test_the_stride_is_in_the_middle_convolution(net):
    blocks = [m for m in net if isinstance(m, BottleneckBlock)]
    assert [
        (b.narrow[0].stride[0], b.middle[0].stride[0], b.widen[0].stride[0])
        for b in blocks
        if b.middle[0].stride[0] > 1
    ] == [(1, 2, 1)] * 3
    assert [isinstance(b.shortcut, nn.Identity) for b in blocks].count(False) == 4


def test_a_block_without_branch_is_its_shortcut():
    with isolated(0):
        block, x = BottleneckBlock(16, 4, 1).eval(), torch.rand(2, 16, 5, 5)
    with torch.no_grad():
        block.widen[0].weight.zero_()
    torch.testing.assert_close(block(x), x)


def test_other_channels_and_outputs():
    with isolated(0):
        net = resnet50(outputs=3, channels=1, width=4).train()
        out = net(torch.randn(2, 1, 32, 32))
    assert out.shape == (2, 3) and bool(out.isfinite().all())
    with pytest.raises(SettingError, match="resnet50: outputs=0 is not valid"):
        resnet50(outputs=0)
