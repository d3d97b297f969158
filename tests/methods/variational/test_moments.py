"""Deterministic VI: no noise in its gradients, the mean-field optimum on conjugate regression, and
the predictive shortcut.
"""

import numpy as np
import pytest
import torch
from torch import nn
from zoo.classification import QUICK, classes
from zoo.regression import bnn, exact, flat_mean, problem

from credo import BNN
from credo.core.errors import CredoError
from credo.core.seeds import isolated
from credo.estimators.moments import propagate

DATA = problem()


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
def test_it_reaches_the_mean_field_optimum_without_noise(covariance):
    """No sampling error is left: one per mille of a posterior deviation is what the descent itself
    leaves.
    """
    x, y, design = DATA
    fitted = bnn().fit(
        (x, y),
        "moments",
        covariance=covariance,
        epochs=500,
        lr=0.1,
        batch_size=1000,
        progress=False,
    )
    mean, cov, evidence = exact(design, y[:, 0].numpy())
    expected = 1 / np.sqrt(np.diag(np.linalg.inv(cov)))
    std = fitted.posterior.factors[0].std()
    ours = torch.cat([std["weight"].flatten(), std["bias"]]).detach().numpy()
    assert np.abs((flat_mean(fitted).numpy() - mean) / expected).max() < 1e-3
    assert np.abs(ours / expected - 1).max() < 1e-3
    assert fitted.history[-1]["elbo"] < evidence


def test_the_full_family_reaches_the_evidence():
    x, y, design = DATA
    fitted = bnn().fit(
        (x, y), "moments", posterior="full", epochs=1500, lr=0.05, batch_size=1000, progress=False
    )
    assert fitted.history[-1]["elbo"] == pytest.approx(exact(design, y[:, 0].numpy())[2], abs=1e-3)


def cnn():
    with isolated(0):
        return nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3)
        )


def mlp():
    with isolated(0):
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


CASES = [
    (name, kind)
    for name in ("mlp", "cnn")
    for kind in ("mean_field", "low_rank", "kron", "full")
    if (name, kind) != ("cnn", "full")
]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_mlps_and_cnns(name, kind):
    x, y = classes()
    if name == "cnn":
        x = torch.randn(60, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    fitted = BNN(cnn() if name == "cnn" else mlp(), "categorical").fit(
        (x, y), "moments", posterior=kind, **QUICK
    )
    assert np.isfinite(fitted.history[-1]["elbo"]) and fitted.predict(x, 3).probs.isfinite().all()


def test_a_full_covariance_over_convolutions_is_refused():
    x, y = torch.randn(9, 1, 8, 8), torch.arange(9) % 3
    with pytest.raises(CredoError, match="'full' has no rule for moments through conv2d"):
        BNN(cnn(), "categorical").fit((x, y), "moments", posterior="full", **QUICK)


def test_an_operation_without_a_rule_is_named():
    from credo.nets import lstm_classifier

    words = torch.randint(0, 11, (8, 6), generator=torch.Generator().manual_seed(0))
    with pytest.raises(CredoError, match="lstm"):
        BNN(lstm_classifier(vocab=11, hidden=6, outputs=3, width=4)).fit(
            (words, torch.arange(8) % 3), "moments", **QUICK
        )


@pytest.mark.parametrize(
    ("shortcut", "covariance"), [("moments", "diagonal"), ("moments_full", "full")]
)
def test_the_shortcut_has_exactly_the_propagated_moments(shortcut, covariance):
    x, y = classes()
    fitted = BNN(mlp().double(), "categorical").fit((x.double(), y), "vi", init_std=0.2, **QUICK)
    p = fitted.predict(x.double(), samples=50, shortcut=shortcut)
    shell = fitted.model.shell()
    with torch.no_grad():
        mean, spread = propagate(shell, fitted.posterior, x.double(), covariance)
    assert p.outputs.shape == (50, 60, 3) and torch.allclose(p.outputs.mean(0), mean, rtol=1e-10)
    centred = p.outputs - p.outputs.mean(0)
    cov = torch.einsum("sni,snj->nij", centred, centred) / 50
    if covariance == "full":
        assert torch.allclose(cov, spread, rtol=1e-6, atol=1e-10)
    assert torch.allclose(
        cov.diagonal(dim1=1, dim2=2),
        spread if covariance == "diagonal" else spread.diagonal(dim1=1, dim2=2),
    )
    parts = fitted.predict(x.double(), samples=50, shortcut=shortcut, batch_size=7)
    assert torch.allclose(parts.outputs, p.outputs, rtol=1e-9, atol=1e-12), "batches change nothing"
