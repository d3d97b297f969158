import pytest
import torch
from torch import nn

from credo.core.errors import SettingError
from credo.nets import Erf, lenet_300_100, mlp


def test_layers_and_parameter_count():
    net = mlp(4, (5, 6), 3, activation="tanh")
    assert [type(m) for m in net] == [nn.Linear, nn.Tanh, nn.Linear, nn.Tanh, nn.Linear]
    assert sum(p.numel() for p in net.parameters()) == 4 * 5 + 5 + 5 * 6 + 6 + 6 * 3 + 3


def test_no_hidden_layer_is_a_linear_map():
    net = mlp(4, (), 2)
    x = torch.randn(3, 4)
    torch.testing.assert_close(net(2 * x) - net(x), net(x) - net(0 * x))


def test_unknown_activation_names_the_nearest():
    with pytest.raises(SettingError, match=r"'rel'.*Did you mean 'relu'"):
        mlp(2, activation="rel")


def test_lenet_300_100_takes_images_and_rows():
    net = lenet_300_100()
    x = torch.randn(2, 1, 28, 28)
    torch.testing.assert_close(net(x), net(x.reshape(2, 784)))
    assert sum(p.numel() for p in net.parameters()) == 266_610


def test_erf_is_an_activation():
    net = mlp(2, (3,), 1, activation="erf")
    x = torch.tensor([[-1.0, 0.0, 2.0]])
    assert isinstance(net[1], Erf)
    torch.testing.assert_close(net[1](x), torch.tensor([[-0.8427008, 0.0, 0.9953223]]))
