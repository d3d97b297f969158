"""Gradients of drop rates on a network small enough for all its masks."""

from itertools import product

import numpy as np
import pytest
import torch

from credo import BNN
from credo.nets import mlp
from credo_reproduce.mask_gradients import KINDS, LAYERS, exact, gradients, rates_of


@pytest.fixture(scope="module")
def fitted():
    """A network of 2-3-2 units with rates of its own, and a batch."""
    torch.manual_seed(0)
    x = torch.randn(6, 2)
    y = (x[:, 0] > 0).long()
    p = {"0.weight": 0.2, "2.weight": 0.4}
    how = {"layers": "all", "p": p, "epochs": 50, "lr": 0.05, "rate_lr": 1e-6, "progress": False}
    return BNN(mlp(2, (3,), 2)).fit((x, y), "concrete_dropout", **how), x, y


def expected_nll(bnn, x, y, logits):
    """Mean over masks of the mean nll, in numpy and double precision."""
    m = {name: value.double().numpy() for name, value in bnn.posterior.mean().items()}
    first, second = 1 / (1 + np.exp(logits))  # probabilities of keeping
    total = 0.0
    for a in product((0, 1), repeat=2):
        for b in product((0, 1), repeat=3):
            chance = (
                first ** sum(a)
                * (1 - first) ** (2 - sum(a))
                * second ** sum(b)
                * (1 - second) ** (3 - sum(b))
            )
            h = np.maximum((x.double().numpy() * a / first) @ m["0.weight"].T + m["0.bias"], 0)
            out = (h * b / second) @ m["2.weight"].T + m["2.bias"]
            log_p = out - np.log(np.exp(out).sum(1, keepdims=True))
            total -= chance * log_p[np.arange(len(y)), y.numpy()].mean()
    return total


def test_the_exact_gradient_is_the_slope_of_the_expected_loss(fitted):
    bnn, x, y = fitted
    at = np.array([float(rates_of(bnn).logit(name)) for name in LAYERS.values()])
    found = exact(bnn, x, y)
    for place, layer in enumerate(LAYERS):
        step = 1e-4 * np.eye(2)[place]
        slope = (expected_nll(bnn, x, y, at + step) - expected_nll(bnn, x, y, at - step)) / 2e-4
        assert found[layer] == pytest.approx(slope, rel=1e-3, abs=1e-6)  # float32 against double


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if not kind.biased], ids=lambda kind: kind.label
)
def test_unbiased_gradients_meet_the_exact_one(fitted, kind):
    """Null: no bias. Two z-tests at 4.5: a right estimator fails once in 70,000 runs, and the seed
    is fixed.
    """
    bnn, x, y = fitted
    truth, found = exact(bnn, x, y), gradients(bnn, kind, x, y, 1000, 3)
    assert all(abs(m.mean - truth[layer]) < 4.5 * m.error for layer, m in found.items())


def test_another_rate_leaves_the_posterior_alone(fitted):
    bnn, x, y = fitted
    before = float(rates_of(bnn).logit("0.weight"))
    here, there = (gradients(bnn, KINDS[0], x, y, 50, 0, rate) for rate in (None, 0.5))
    assert here["input"].mean != there["input"].mean
    assert (
        float(rates_of(bnn).logit("0.weight")) == before
        and not rates_of(bnn).logits[0].requires_grad
    )


def test_the_same_seed_gives_the_same_moments(fitted):
    bnn, x, y = fitted
    assert gradients(bnn, KINDS[3], x, y, 5, 1) == gradients(bnn, KINDS[3], x, y, 5, 1)
