"""A small classification problem and settings for fits of Laplace's approximation."""

import torch
from torch import nn

from credo import BNN

STILL = {"train": False, "tune": "none", "progress": False}
DESCENT = {
    "epochs": 500,
    "lr": 0.1,
    "batch_size": 1000,
    "progress": False,
}  # all data at once, to the optimum
FORMS = ("diagonal", "kfac", "low_rank", "full")


def classes(n=40, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0.8).long()


def network(outputs=3, width=5):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, outputs)).double()


def classifier(**how):
    return BNN(network(), "categorical", **how)


def width(fitted, name):
    """Of the prior that the fit ended with."""
    return float(fitted.model.prior.at(fitted.model.sites[name]).scale.reshape(-1)[0])
