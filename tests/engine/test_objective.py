import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Normal, StudentT, kl_divergence
from zoo.classification import QUICK, classes, classifier
from zoo.regression import bnn, exact, problem
from zoo.stats import Z, log_mean_exp

from credo import BNN
from credo.core.errors import CredoError
from credo.likelihoods import Gaussian

DATA = problem()


def fit(method="vi", prior=None, **how):
    x, y, _ = DATA
    return bnn(prior=prior).fit(
        (x, y), method, **({"epochs": 400, "lr": 0.05, "batch_size": 1000, "progress": False} | how)
    )


def test_the_parts_of_mean_field_under_a_normal_prior_are_their_closed_forms():
    x, y, design = DATA
    fitted = fit()
    parts = fitted.objective((x, y), samples=4000, precision=0.01)
    mean, var = fitted.posterior.factors[0].marginals()
    mu, v = (torch.cat([p["weight"].flatten(), p["bias"]]) for p in (mean, var))
    q, p = Normal(mu, v.sqrt()), Normal(torch.zeros(4).double(), 1.25)
    kl = float(kl_divergence(q, p).sum())
    assert parts["kl"] == pytest.approx(kl, rel=1e-6)
    phi = torch.from_numpy(design)
    residual = ((y[:, 0] - phi @ mu) ** 2 + phi**2 @ v).sum()
    nll = float(residual) / (2 * 0.25) + 30 * math.log(0.5 * math.sqrt(2 * math.pi))
    assert abs(parts["nll"] - nll) < Z * parts["error"], (
        "the KL is exact, so all error is the nll's"
    )
    assert parts["bits_data"] == pytest.approx((parts["nll"] - 30 * math.log(0.01)) / math.log(2))
    assert parts["bits_weights"] == pytest.approx(kl / math.log(2), rel=1e-6)
    assert parts["bits_sent"] == pytest.approx(
        (kl + float(q.entropy().sum())) / math.log(2), rel=1e-6
    ), "-E log2 p(w)"
    assert parts["bits_back"] == pytest.approx(float(q.entropy().sum()) / math.log(2), rel=1e-6), (
        "the bits that chose w"
    )


@pytest.mark.parametrize(
    "how", [{}, {"posterior": "low_rank"}, {"posterior": "kron"}, {"prior": StudentT(4.0)}]
)
def test_bits_balance(how):
    x, y, _ = DATA
    parts = fit(epochs=5, **how).objective((x, y), samples=20, precision=0.1)
    assert parts["bits_sent"] - parts["bits_back"] == pytest.approx(parts["bits_weights"])
    assert parts["bits_total"] == pytest.approx(parts["bits_data"] + parts["bits_weights"])
    assert parts["elbo"] == pytest.approx(-parts["nll"] - parts["kl"])


def test_labels_have_bits_and_numbers_only_at_a_precision():
    x, y = classes()
    labels = (
        BNN(classifier(), "categorical").fit((x, y), "vi", **QUICK).objective((x, y), samples=5)
    )
    assert labels["bits_data"] == pytest.approx(labels["nll"] / math.log(2))
    assert "bits_data" not in fit(epochs=1).objective(DATA[:2], samples=5)


def test_the_error_covers_a_sampled_kl():
    """Estimates from many seeds spread as the reported error says: within a third of it, for forty
    of them.
    """
    fitted = fit(prior=StudentT(4.0), epochs=100)
    rows = [fitted.objective(DATA[:2], samples=100, seed=seed) for seed in range(40)]
    spread, reported = (
        np.std([r["elbo"] for r in rows], ddof=1),
        np.mean([r["error"] for r in rows]),
    )
    assert 0.67 < spread / reported < 1.5


def test_importance_weights_of_the_exact_posterior_do_not_vary():
    x, y, design = DATA
    fitted = fit("exact")
    logs = fitted.log_weights((x, y), samples=50)
    evidence = exact(design, y[:, 0].numpy())[2]
    assert float(logs.std()) < 1e-8 and float(logs.mean()) == pytest.approx(evidence, rel=1e-8)
    assert fitted.objective((x, y), samples=50)["elbo"] == pytest.approx(evidence, abs=1.0)


def test_the_importance_estimate_lies_between_elbo_and_evidence():
    x, y, design = DATA
    fitted = fit()
    logs = fitted.log_weights((x, y), samples=2000)
    evidence = exact(design, y[:, 0].numpy())[2]
    estimate = float(log_mean_exp(logs))
    weights = (logs - estimate).exp()
    error = float(weights.std()) / len(logs) ** 0.5
    parts = fitted.objective((x, y), samples=2000)
    assert (
        parts["elbo"] - Z * parts["error"] < float(logs.mean()) < parts["elbo"] + Z * parts["error"]
    )
    assert float(logs.mean()) + 0.1 < estimate < evidence + Z * error
    assert estimate > evidence - Z * error, (
        "the weights of a posterior this close have a finite variance"
    )


def test_points_count_only_under_a_prior():
    x, y, _ = DATA
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    how = {"epochs": 2, "progress": False}
    free = BNN(net, Gaussian(std=0.5), Normal(0.0, 1.0), random="weights").fit((x, y), "vi", **how)
    assert free.log_weights((x, y), 5).shape == (5,)
    named = BNN(
        net,
        Gaussian(std=0.5),
        {"*.weight": Normal(0.0, 1.0), "*": Normal(0.0, 1.0)},
        random="weights",
    ).fit((x, y), "vi", **how)
    with pytest.raises(CredoError, match="point estimates under a prior has no importance weights"):
        named.log_weights((x, y), 5)
    parts = named.objective((x, y), samples=5, precision=0.1)
    point = [v for n, v in named.posterior.mean().items() if n.endswith("bias")]
    cost = -sum(float(Normal(0.0, 1.0).log_prob(v).sum()) for v in point)
    assert parts["kl"] - free.objective((x, y), samples=5)["kl"] == pytest.approx(cost, rel=0.2)


def test_masks_cost_what_their_closed_kl_says_and_give_no_bits_back():
    x, y = classes()
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 3))
    fitted = BNN(net, "categorical", prior=Normal(0.0, 1.0)).fit((x, y), "mc_dropout", **QUICK)
    parts = fitted.objective((x, y), samples=50)
    values = fitted.posterior.mean()
    squares = {n: float(v.square().sum()) for n, v in values.items() if "mask" not in n}
    count = sum(v.numel() for n, v in values.items() if "mask" not in n)
    entropy = -8 * (0.3 * math.log(0.3) + 0.7 * math.log(0.7))
    expected = (
        0.5 * (sum(squares.values()) + squares["3.weight"] * 0.3 / 0.7)
        + 0.5 * count * math.log(2 * math.pi)
        - entropy
    )
    assert parts["kl"] == pytest.approx(expected, rel=1e-5) and parts["bits_back"] == pytest.approx(
        0.0
    )
    assert parts["elbo"] == pytest.approx(-parts["nll"] - parts["kl"])
    with pytest.raises(CredoError, match="no density over weights"):
        fitted.log_weights((x, y), samples=5)
