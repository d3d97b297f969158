"""Linear data, a small model of them, and the names of what a fit is found to suffer from."""

import torch
from torch import nn

import credo
from credo.engine.diagnose import Case
from credo.engine.fit_job import FitJob, FitOptions
from credo.engine.model import Fitted

G = torch.Generator().manual_seed(0)
X = torch.randn(200, 5, generator=G)
Y = X @ torch.randn(5, 1, generator=G) + 0.5 * torch.randn(200, 1, generator=G)


def bnn(net=None, likelihood=None):
    torch.manual_seed(0)
    net = nn.Linear(5, 1) if net is None else net
    return credo.BNN(net, likelihood or credo.likelihoods.Gaussian(std=0.5))


def names(fitted):
    return [finding.name for finding in fitted.diagnose()]


def case(fitted, data=(X, Y)):
    """The case of a model that is fitted, as after its fit."""
    model, method = fitted.model, fitted.method
    fit_job = FitJob.on(data, FitOptions(), method, model, False, torch.float32)
    return Case(model, method, Fitted(fitted.posterior, fitted.buffers), fit_job)


def hidden(activation=nn.ReLU):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 20), activation(), nn.Linear(20, 1))


@torch.no_grad()
def moved(fitted, shift, scale=1.0):
    """The same fit with another first layer."""
    values = fitted.posterior.mean()
    values["0.weight"].mul_(scale)
    values["0.bias"].add_(shift)
    return fitted
