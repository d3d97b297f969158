"""A network of eleven binary weights, small enough to enumerate, fitted by any method for discrete
weights.
"""

import torch
from torch import nn

from credo import BNN
from credo.core.seeds import isolated
from credo.engine.elbo import Elbo
from credo.estimators import Score
from credo.likelihoods import Gaussian
from zoo.gradients import Enumerated


def _data():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(12, 3, generator=generator, dtype=torch.float64)
    return x, torch.tanh(x[:, :1] - x[:, 1:2]) - torch.tanh(x[:, :1] + x[:, 2:])


DATA = _data()


def network():
    with isolated(3):
        return nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1)).double()


def fit_binary(method, net=None, std=1.0, data=DATA, **how):
    settings = {
        "posterior": "discrete",
        "epochs": 500,
        "lr": 0.05,
        "batch_size": 100,
        "progress": False,
    } | how
    return BNN(network() if net is None else net, Gaussian(std=std)).fit(data, method, **settings)


def enumerated(fitted, data=DATA):
    """Every configuration of a fitted model's weights."""
    return Enumerated(Elbo(fitted.model, fitted.posterior, Score()), *data)
