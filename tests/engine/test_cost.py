import torch
from torch import nn

from credo import BNN
from credo.data.intake import intake
from credo.engine.cost import products_per_example
from credo.nets import mlp


def test_a_dense_layer_costs_its_weights_a_convolution_one_per_place_and_numbers_are_dear():
    x = torch.randn(6, 5)
    model = BNN(mlp(5, (50,), 1), "gaussian").model
    assert products_per_example(model, intake((x, torch.randn(6, 1)))) == 300 + 60 * 101
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2 * 6 * 6, 3))
    images = torch.randn(6, 1, 8, 8)
    model = BNN(net).model
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    assert products_per_example(model, intake((images, labels))) == 18 * 36 + 72 * 3 + 60 * 75
