"""Tests of the augmented network."""

import torch
from torch import nn

import credo
from credo.core.seeds import isolated
from credo.nets import Augmented


def shift(x):
    return x + torch.randn_like(x)


def test_inputs_change_in_training_mode_only():
    net = Augmented(nn.Linear(3, 2), shift)
    x = torch.randn(4, 3)
    with isolated(0):
        net.train()
        assert not torch.equal(net(x), net(x))
        net.eval()
        assert torch.equal(net(x), net.net(x))


def test_test_time_augmentation_spreads_predictions():
    with isolated(0):
        x = torch.randn(40, 3)
        net = Augmented(nn.Linear(3, 2), shift)
    y = (x[:, 0] > 0).long()
    bnn = credo.BNN(net).fit((x, y), "stochastic", epochs=20, lr=0.1, progress=False)
    spread = bnn.predict(x, 20)
    assert spread.epistemic.mean() > 1e-3
    assert torch.equal(spread.outputs, bnn.predict(x, 20).outputs)
    assert float(bnn.predict(x, shortcut="mean").epistemic.abs().max()) < 1e-6
