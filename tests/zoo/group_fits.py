"""Fits of the group-sparse methods on small problems: a regression that needs two of six inputs,
and what the methods share.
"""

import pytest
import torch
from torch import nn

import credo
from credo import BNN
from credo.core.seeds import generator, isolated
from credo.likelihoods import Gaussian
from credo.posteriors import GroupScale

QUICK = {"epochs": 250, "lr": 0.02, "batch_size": 300, "kl_warmup": 50, "progress": False}


def regression(outputs=2):
    """y depends on the first two of six inputs."""
    x = torch.randn(300, 6, generator=generator("x"), dtype=torch.float64)
    weights = torch.tensor([[2.0, -1.0], [-1.5, 1.0]], dtype=torch.float64)[:, :outputs]
    y = x[:, :2] @ weights + 0.1 * torch.randn(
        300, outputs, generator=generator("y"), dtype=torch.float64
    )
    return x, y


def fit_linear(method, **how):
    """A linear layer on that problem, and the family over its weight."""
    with isolated(0):
        net = nn.Linear(6, 2).double()
    x, y = regression()
    bnn = BNN(net, Gaussian(std=0.1)).fit((x, y), method, **(QUICK | how))
    family = bnn.posterior.factors[0]
    assert isinstance(family, GroupScale)
    return bnn, family, (x, y)


def fits_predicts_and_saves(method, tmp_path, **how):
    """A small convolutional network with normalisation: spread, a history of groups, a file that
    predicts the same.
    """
    with isolated(1):
        net, x = (
            credo.nets.small_cnn(1, 3, widths=(4, 4), batch_norm=True),
            torch.randn(24, 1, 8, 8),
        )
    bnn = BNN(net).fit(
        (x, torch.arange(24) % 3), method, epochs=3, batch_size=12, progress=False, **how
    )
    outputs = bnn.predict(x, 5).outputs
    assert float(outputs.std(0).min()) > 0 and "sparsity" in bnn.history[-1]
    assert any(key.startswith("kept/") for key in bnn.history[-1])
    bnn.save(tmp_path / "model")
    assert torch.equal(credo.load(tmp_path / "model", net).predict(x, 5).outputs, outputs)
    return bnn, (x, torch.arange(24) % 3)


def refuses_prior_draws(bnn, x):
    with pytest.raises(credo.CredoError, match="prior is over groups of weights"):
        bnn.predict(x, 3, source="prior")
