"""Linear data, a small model of them, and the names of what a fit is found to suffer from."""

import torch
from torch import nn

import credo

G = torch.Generator().manual_seed(0)
X = torch.randn(200, 5, generator=G)
Y = X @ torch.randn(5, 1, generator=G) + 0.5 * torch.randn(200, 1, generator=G)


def bnn(net=None, likelihood=None):
    torch.manual_seed(0)
    net = nn.Linear(5, 1) if net is None else net
    return credo.BNN(net, likelihood or credo.likelihoods.Gaussian(std=0.5))


def names(fitted):
    return [finding.name for finding in fitted.diagnose()]
