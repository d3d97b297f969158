"""Approximations of known quality, against draws from the exact posterior."""

import math

import pytest
import torch
from scipy.stats import binom, t
from torch import nn
from torch.distributions import Normal
from zoo.stats import P_VALUE, Z

import credo
from credo import audit
from credo.audit.cells import cells, jackknife
from credo.audit.compare import SIGNED
from credo.audit.distances import DISTANCES
from credo.core.seeds import isolated
from credo.likelihoods import Bernoulli, Gaussian, Heteroscedastic, Poisson, StudentT
from credo.posteriors import MeanField
from credo.predictive import Predictive

#: Errors rest on 12 cells a side: a difference beyond Z of them has probability 4e-4 (Student's law
#: with 11 degrees).
KEYS = (
    "total_variation",
    "wasserstein",
    "sd_ratio",
    "mean_shift",
    "nll_difference",
    "calibration_difference",
)


def test_the_exact_posterior_is_at_the_ceiling(problem, exact, truth):
    found = audit.compare(exact, truth, problem.x, problem.y)
    assert set(found) == {f"{key}{end}" for key in KEYS for end in ("", "_error", "_ceiling")}
    for key in ("total_variation", "wasserstein", "mean_shift"):
        assert 0 < found[key] < found[f"{key}_ceiling"] + Z * found[f"{key}_error"], key
    assert abs(found["sd_ratio"] - 1.0) < Z * found["sd_ratio_error"]
    assert abs(found["nll_difference"]) < Z * found["nll_difference_error"]


def test_mean_field_is_narrower_by_the_known_amount(problem, truth):
    """The best mean-field posterior has standard deviations 1 / sqrt(P_jj) for a precision P."""
    bnn = problem.bnn().fit((problem.x, problem.y), "vi", epochs=1, progress=False)
    std = problem.precision.diagonal().rsqrt()
    family = MeanField.start({"weight": problem.mean[:3].reshape(1, 3), "bias": problem.mean[3:]})
    with torch.no_grad():
        family.raw_std.copy_(std.log())
    bnn.posterior.families[0] = family.requires_grad_(False)
    # Across the correlated inputs, where it shows most.
    x = torch.tensor([[3.0, -3.0, 0.0], [-2.0, 2.5, 0.5]], dtype=torch.float64)
    design = torch.cat([x, torch.ones(len(x), 1, dtype=torch.float64)], 1)
    narrow, wide = (
        torch.einsum("ni,ij,nj->n", design, c, design)
        for c in (std.square().diag(), problem.covariance)
    )
    known = float((0.5 * (narrow / wide).log()).mean().exp())
    found = audit.compare(bnn, truth, x)
    assert abs(found["sd_ratio"] - known) < Z * found["sd_ratio_error"] < 1.0 - known
    assert found["wasserstein"] > found["wasserstein_ceiling"] + 2 * found["wasserstein_error"]
    assert "nll_difference" not in found


def test_a_point_estimate_has_errors_from_the_reference_alone(problem, truth):
    point = problem.bnn().fit(
        (problem.x, problem.y), "map", epochs=300, batch_size=None, lr=0.1, progress=False
    )
    found = audit.compare(point, truth, problem.x, problem.y)
    assert found["sd_ratio"] == found["sd_ratio_error"] == 0.0 and found["mean_shift_error"] > 0
    # W1 between a point at the mean and a normal law is its mean absolute deviation.
    assert abs(found["wasserstein"] - math.sqrt(2.0 / math.pi)) < Z * math.hypot(
        found["wasserstein_error"], found["wasserstein_ceiling"]
    )


def test_the_reference_agrees_with_itself(problem, truth):
    found = audit.compare(truth, truth, problem.x, problem.y)
    assert (
        found["total_variation"]
        == found["wasserstein"]
        == found["mean_shift"]
        == found["nll_difference"]
        == 0.0
    )
    assert found["sd_ratio"] == 1.0


def test_the_ceiling_shrinks_with_draws(problem, exact):
    few, many = (audit.compare(exact, exact, problem.x, samples=n) for n in (100, 6400))
    for key in ("total_variation", "wasserstein", "mean_shift"):
        # like 1 / sqrt(draws), so 8 times smaller; 3 times leaves room for the luck of 3 halvings
        # each
        assert 0 < many[f"{key}_ceiling"] < few[f"{key}_ceiling"] / 3.0, key
    assert 1.0 < many["sd_ratio_ceiling"] < few["sd_ratio_ceiling"]


def test_errors_cover_the_truth():
    """Independent draws against chains with memory, both normal: intervals at 95 % miss no more
    often than 1 in 20.

    The number of misses in 100 repeats is binomial; the bound has the failure rate of ``P_VALUE``.
    """
    source, repeats, kind, likelihood = (
        torch.Generator().manual_seed(0),
        100,
        DISTANCES["values"],
        Gaussian(std=0.5),
    )
    bound = float(t.ppf(0.975, 11))
    misses = {"sd_ratio": 0, "mean_shift": 0}
    for _ in range(repeats):
        first = 0.5 + 0.7 * torch.randn(240, 4, 1, dtype=torch.float64, generator=source)
        noise = torch.randn(240, 4, 4, 1, dtype=torch.float64, generator=source)
        chain = [noise[0]]
        for step in noise[1:]:
            chain.append(0.5 * chain[-1] + math.sqrt(0.75) * step)
        pair = [
            Predictive(first, likelihood),
            Predictive(torch.stack(chain, 1).flatten(0, 1), likelihood),
        ]
        edges = kind.edges(*pair)
        ours, theirs = (
            kind.draw_set(p, cells(p.num_samples, c), edges, None)
            for p, c in zip(pair, (1, 4), strict=True)
        )
        value = kind.distances(ours.subset(), theirs.subset())
        errors = [
            jackknife([kind.distances(part, theirs.subset()) for part in ours.without_each()]),
            jackknife([kind.distances(ours.subset(), part) for part in theirs.without_each()]),
        ]
        for key, true in (("sd_ratio", 0.7), ("mean_shift", 0.5)):
            misses[key] += abs(value[key] - true) > bound * math.hypot(
                errors[0][key], errors[1][key]
            )
    assert max(misses.values()) <= binom.isf(P_VALUE, repeats, 0.05), misses


def blobs():
    source = torch.Generator().manual_seed(3)
    y = torch.arange(60) % 3
    centre = torch.tensor([[0.0, 1.5], [1.3, -0.8], [-1.3, -0.8]])
    return centre[y] + torch.randn(60, 2, generator=source), y


def test_a_classifier_and_its_point_estimate():
    x, y = blobs()
    with isolated(0):
        net = nn.Linear(2, 3)
    bnn = credo.BNN(net, "categorical", prior=Normal(0.0, 1.0)).fit(
        (x, y), "map", epochs=200, lr=0.1, batch_size=None, progress=False
    )
    truth = audit.reference(bnn, (x, y), num_warmup=150, num_draws=200, num_steps=4, progress=False)
    found = audit.compare(bnn, truth, x, y)
    assert (
        found["agreement"] > 0.9 and found["agreement_ceiling"] > 0.9 and found["sd_ratio"] == 0.0
    )
    assert found["total_variation"] > found["total_variation_ceiling"]
    assert abs(found["calibration_difference"]) < 1.0
    again = audit.compare(truth, truth, x, y)
    assert again["agreement"] == 1.0 and again["total_variation"] == 0.0


@pytest.mark.parametrize(
    ("likelihood", "outputs"),
    [
        (Gaussian(), 2),
        (StudentT(), 1),
        (Heteroscedastic(), 2),
        (Poisson(), 1),
        (Bernoulli(), 1),
        (Bernoulli(), 2),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_every_kind_of_likelihood(likelihood, outputs):
    x, _ = blobs()
    dim = likelihood.target_dim(outputs)
    y = (
        (x[:, :1] > 0).float().expand(-1, dim).clone()
        if likelihood.discrete
        else x[:, :1].expand(-1, dim).clone()
    )
    y = y + torch.arange(len(y)).remainder(2).unsqueeze(1) * (
        0.0 if likelihood.name == "bernoulli" else 1.0
    )
    y = y.squeeze(-1) if likelihood.discrete else y
    with isolated(0):
        net = nn.Linear(2, outputs)
    first, second = (
        credo.BNN(net, likelihood, prior=Normal(0.0, 1.0)).fit(
            (x, y), "vi", epochs=3, seed=seed, init_std=0.1, progress=False
        )
        for seed in (0, 1)
    )
    found = audit.compare(first, second, x[:5], y[:5], samples=40)
    assert all(math.isfinite(value) for value in found.values())
    assert 0 <= found["total_variation"] <= 1 and ("agreement" in found) == (
        likelihood.metric_family == "labels"
    )
    assert all(found[f"{key}_ceiling"] >= 0 for key in SIGNED)


def test_different_models_are_refused(problem, truth):
    other = credo.BNN(nn.Linear(3, 2).double(), Gaussian(std=0.5), prior=Normal(0.0, 1.0))
    other.fit((problem.x, torch.stack([problem.y, -problem.y], 1)), "exact")
    with pytest.raises(credo.CredoError, match="gaussian with 2 outputs.*gaussian with 1"):
        audit.compare(other, truth, problem.x)


def test_a_reference_without_draws_or_spread_is_refused(problem, exact):
    point = problem.bnn().fit((problem.x, problem.y), "map", epochs=1, progress=False)
    with pytest.raises(credo.CredoError, match="holds 1 draws"):
        audit.compare(exact, point, problem.x)
    with pytest.raises(credo.SettingError, match="samples=0"):
        audit.compare(exact, exact, problem.x, samples=0)
