import torch
from torch import nn

from credo import BNN
from credo.data.intake import intake
from credo.engine.cost import products_per_example
from credo.nets import mlp


def test_products_of_dense_layers_are_their_weights_and_of_convolutions_one_per_place():
    x = torch.randn(6, 5)
    model = BNN(mlp(5, (50,), 1), "gaussian").model
    assert products_per_example(model, intake((x, torch.randn(6, 1)))) == 5 * 50 + 50
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2 * 6 * 6, 3))
    images = torch.randn(6, 1, 8, 8)
    model = BNN(net).model
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    assert products_per_example(model, intake((images, labels))) == 18 * 36 + 72 * 3
