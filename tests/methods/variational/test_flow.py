import math

import pytest
import torch
from torch import nn

from credo import BNN, load
from credo.core.seeds import isolated
from credo.likelihoods import Gaussian
from credo.posteriors import Delta, Flow, MeanField


class Product(nn.Module):
    """y = w1 w2: a posterior along two branches of a hyperbola."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1.0, 1.0], dtype=torch.float64))

    def forward(self, x):
        return x * self.w[0] * self.w[1]


ONES = torch.ones(8, 1, dtype=torch.float64)
TARGETS = 1.0 + 0.2 * torch.linspace(-1, 1, 8, dtype=torch.float64).unsqueeze(1)


def product(method, **how):
    bnn = BNN(Product(), Gaussian(std=0.3)).fit(
        (ONES, TARGETS), method, batch_size=100, progress=False, init_std=0.1, **how
    )
    return bnn.objective((ONES, TARGETS), samples=1000)


def log_evidence():
    """By quadrature over a grid of both weights."""
    axis = torch.linspace(-6, 6, 1201, dtype=torch.float64)
    a, b = torch.meshgrid(axis, axis, indexing="ij")
    normal = torch.distributions.Normal(0.0, 1.0)
    log_joint = normal.log_prob(a) + normal.log_prob(b)
    for y in TARGETS:
        log_joint = log_joint + torch.distributions.Normal(a * b, 0.3).log_prob(y)
    return float(torch.logsumexp(log_joint.flatten(), 0)) + 2 * math.log(0.01)


def test_a_curved_posterior_fits_better_than_independent_gaussians(capsys):
    """One branch alone has half the evidence: a flow that follows it ends near log p - log 2, a
    Gaussian below.
    """
    flow = product(
        "flow",
        layers="all",
        epochs=300,
        lr=0.03,
        train_samples=4,
        kind="affine",
        num_transforms=3,
        hidden=16,
    )
    plain = product("vi", estimator="weights", epochs=400, lr=0.03, train_samples=4)
    evidence = log_evidence()
    with capsys.disabled():
        print(
            f"\nlog evidence {evidence:.3f}; ELBO of the flow {flow['elbo']:.3f}, mean field "
            f"{plain['elbo']:.3f}"
        )
    error = 5 * math.hypot(flow["error"], plain["error"])
    assert flow["elbo"] > plain["elbo"] + 0.2 + error and flow["elbo"] < evidence + error


def deep():
    with isolated(0):
        return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))


@pytest.mark.parametrize("kind", ["affine", "spline"])
@pytest.mark.parametrize("layers", ["last", "all", ("0.*",)])
def test_layers_and_kinds(kind, layers, tmp_path):
    x = torch.randn(12, 2, generator=torch.Generator().manual_seed(0))
    y = x.sum(1, keepdim=True)
    bnn = BNN(deep(), "gaussian", random="*.weight").fit(
        (x, y),
        "flow",
        layers=layers if layers != ("0.*",) else ("0.weight",),
        kind=kind,
        hidden=8,
        epochs=2,
        progress=False,
    )
    kinds = [type(family) for family in bnn.posterior.factors]
    assert kinds == ([Flow, Delta] if layers == "all" else [Flow, MeanField, Delta])
    bnn.save(tmp_path / "model")
    again = load(tmp_path / "model", deep())
    assert torch.equal(bnn.predict(x, 4).outputs, again.predict(x, 4).outputs)


@pytest.mark.parametrize("estimator", ["local", "flipout", "per_example"])
def test_the_rest_of_the_network_may_meet_another_estimator(estimator):
    x = torch.randn(12, 2, generator=torch.Generator().manual_seed(0))
    bnn = BNN(deep(), "gaussian").fit(
        (x, x[:, :1]), "flow", estimator=estimator, hidden=8, epochs=2, progress=False
    )
    assert len(bnn.history) == 2
