"""The three fixed problems every method is audited on, each small enough for its true posterior to
be drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Normal

from credo.bnn import BNN
from credo.core.seeds import generator, isolated
from credo.data import load
from credo.likelihoods import Categorical, Gaussian, Likelihood
from credo.nets import mlp

Pair = tuple[Tensor, Tensor]


class Problem(NamedTuple):
    """Data, network and likelihood; the prior is N(0, 1).

    ``lr``: of stochastic-gradient samplers, below the largest stable step.
    """

    name: str
    train: Pair
    test: Pair
    network: Callable[[], nn.Module]
    likelihood: Likelihood
    lr: float

    def bnn(self) -> BNN:
        """A fresh model: the same network for every method."""
        with isolated(0):
            net = self.network()
        return BNN(net, self.likelihood, prior=Normal(0.0, 1.0))


def linear() -> Problem:
    """Conjugate regression: 40 points, three correlated inputs, noise 0.5; its posterior is
    Gaussian and known.
    """
    source = generator("audit", "linear")
    x = torch.randn(240, 3, generator=source)
    x[:, 1] = 0.6 * x[:, 0] + 0.8 * x[:, 1]
    y = (
        x @ torch.tensor([[1.0], [-0.5], [0.25]])
        + 0.3
        + 0.5 * torch.randn(240, 1, generator=source)
    )
    return Problem(
        "linear",
        (x[:40], y[:40]),
        (x[40:], y[40:]),
        lambda: nn.Linear(3, 1),
        Gaussian(std=0.5),
        0.01,
    )


def yacht() -> Problem:
    """Yacht hydrodynamics (308 rows, 6 inputs), standardised, the first published split: a network
    6-20-1 with noise 0.1.
    """
    data = load("uci_yacht")
    train, test = (torch.as_tensor(data[f"{part}_idx"][0]).long() for part in ("train", "test"))
    x, y = (
        torch.as_tensor(data[key], dtype=torch.float32).reshape(len(data["y"]), -1)
        for key in ("X", "y")
    )
    x, y = ((v - v[train].mean(0)) / v[train].std(0).clamp_min(1e-6) for v in (x, y))
    network = lambda: mlp(6, (20,), 1, activation="tanh")  # noqa: E731
    return Problem(
        "yacht", (x[train], y[train]), (x[test], y[test]), network, Gaussian(std=0.1), 1e-3
    )


def crescents() -> Problem:
    """Two interleaved crescents in the plane, 100 points with noise, and a network 2-16-2; tested
    on fresh points and around them.
    """
    source = generator("audit", "crescents")

    def points(count: int) -> Pair:
        angle = math.pi * torch.rand(count, generator=source)
        y = (torch.rand(count, generator=source) < 0.5).long()
        sign = 1.0 - 2.0 * y
        x = torch.stack([sign * angle.cos() + y - 0.5, sign * angle.sin() + 0.25 * sign], 1)
        return x + 0.25 * torch.randn(count, 2, generator=source), y

    return Problem(
        "crescents",
        points(100),
        points(200),
        lambda: mlp(2, (16,), 2, activation="tanh"),
        Categorical(),
        0.05,
    )


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "linear": linear,
    "yacht": yacht,
    "crescents": crescents,
}

#: What a method is fitted with, beside its defaults, where full-batch descent with Adam at 0.01 is
#: not the thing.
DESCENT: dict[str, Any] = {"lr": 1e-2}
SETTINGS: dict[str, dict[str, Any]] = {
    "bbvi": {"train_samples": 4, "lr": 1e-2},
    "exact": {},
    "ivon": {"lr": 3e-3},
    "hmc": {"num_warmup": 500, "num_draws": 500, "compile": True},
    "nuts": {"num_warmup": 300, "num_draws": 150, "compile": True},
    "metropolis": {"num_warmup": 10_000, "num_draws": 500, "thin": 20},
    "tempering": {
        "num_warmup": 500,
        "num_draws": 500,
        "num_rungs": 8,
        "num_steps": 50,
        "compile": True,
    },
    "annealing": {"num_moves": 1000, "num_steps": 50, "compile": True},
    "importance": {"num_proposals": 20_000, "lr": 1e-2},
    "sgld": {"num_warmup": 10_000, "num_draws": 500, "thin": 20},
    "psgld": {"num_warmup": 10_000, "num_draws": 500, "thin": 20},
    "sghmc": {"num_warmup": 5_000, "num_draws": 500, "thin": 20},
    "csgmcmc": {"num_draws": 400, "num_cycles": 4, "thin": 20},
    "svgd": {"num_particles": 100, "lr": 3e-2},
    "deep_ensemble": {"num_members": 10, "lr": 1e-2},
    "laplace": {"lr": 1e-2, "structure": "full", "tune": "none"},
    "snapshot": {"num_cycles": 5, "lr": 1e-2},
    "swag": {"lr": 1e-2, "optimizer": "adam", "batch_size": 32, "start": 0.75},
    "multiswag": {
        "num_members": 10,
        "lr": 1e-2,
        "optimizer": "adam",
        "batch_size": 32,
        "start": 0.75,
    },
}
#: Methods that say nothing about the weights' posterior of these networks, and why.
NOT_APPLICABLE = {
    "deep_gp": "is a Gaussian process, not this network",
    "dkl": "has a Gaussian process in place of the last layer, which is another model",
    "mc_batchnorm": "needs BatchNorm, which these networks do not have",
    "nngp": "is the posterior of the infinitely wide network, not of this one",
    "stochastic": "needs a network that is random by itself",
    "vib": "needs a network with a bottleneck",
}
