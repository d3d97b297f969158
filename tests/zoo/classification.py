"""A small classification problem, a network with BatchNorm for it, and settings of a fit that only
has to run.
"""

import torch
from torch import nn

QUICK = {"epochs": 3, "batch_size": 16, "progress": False}


def classes(n=60):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 4, generator=generator)
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 1).long()


def classifier():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))
