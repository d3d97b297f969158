"""Bits of weights and of labels."""

import pytest
import torch
from torch import nn

from credo.bnn import BNN
from credo.core.seeds import isolated
from credo.nets import mlp
from credo_reproduce.message_length import Length, label_bits, model_bits


def test_model_bits_are_the_kl_of_the_objective():
    """The same sum as ``objective`` gives, and nothing once every weight is noise."""
    with isolated(0):
        x, y, net = torch.randn(20, 4), torch.arange(20) % 3, mlp(4, (6,), 3)
    bnn = BNN(net).fit((x, y), "sparse_vd", epochs=3, progress=False)
    left, counted, sparsity = model_bits(bnn)
    assert (
        counted == pytest.approx(bnn.objective((x, y), 2)["bits_weights"], rel=1e-5)
        and 0 < left <= counted
        and sparsity < 100.0
    )
    family = next(member for member in bnn.posterior.factors if member.atoms != 1)
    with torch.no_grad():
        family.raw_std.fill_(20.0)
    left, counted, sparsity = model_bits(bnn)
    assert left == 0.0 and 0.0 < counted < 0.02 and sparsity == 100.0


def test_labels_cost_one_bit_each_where_both_classes_are_as_likely():
    net = nn.Linear(2, 2)
    with torch.no_grad():
        net.weight.zero_()
        net.bias.zero_()
    assert label_bits(net, (torch.randn(7, 2), torch.zeros(7).long())) == pytest.approx(7.0)


def test_the_least_length_takes_the_shorter_message_for_the_labels():
    length = Length(100.0, 10.0, 50.0, data=30.0, steps=20.0, model=5.0, counted=6.0)
    assert (length.total, length.least) == (35.0, 25.0)
    assert length.row("x", 70.0).measured["total / empty"] == 0.5
