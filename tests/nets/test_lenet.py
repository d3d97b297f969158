import torch
from torch import nn

from credo.nets import lenet5_caffe


def test_published_size_and_shape():
    net = lenet5_caffe()
    assert sum(p.numel() for p in net.parameters()) == 431_080
    assert net(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


def test_no_nonlinearity_follows_a_convolution():
    kinds = [type(m) for m in lenet5_caffe()]
    assert kinds.count(nn.ReLU) == 1
    assert kinds.index(nn.ReLU) > kinds.index(nn.Flatten)
