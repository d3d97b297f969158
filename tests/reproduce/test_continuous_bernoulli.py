"""Tests of the experiment on continuous against plain Bernoulli likelihoods."""

import math

import pytest
import torch
from torch import nn

from credo.core.errors import DataError
from credo.data import load
from credo.likelihoods import ContinuousBernoulli
from credo.report.html import render
from credo_reproduce.base import make_experiment, perform
from credo_reproduce.continuous_bernoulli import (
    SETS,
    Binned,
    Bounded,
    ContinuousAgainstPlain,
    SameMean,
)
from credo_reproduce.outcome import Row


def quick(seed=0, **settings):
    for name in SETS:
        try:
            load(name)
        except DataError as error:
            pytest.skip(f"needs {name}: {error}")
    return perform(make_experiment("continuous_bernoulli", {"quick": True, **settings}), seed=seed)


def mean(parameters):
    return ContinuousBernoulli().marginals(parameters.double()).mean


# --- the same mean --------------------------------------------------------------------------------


def test_the_mean_is_kept():
    """Between entries 0.01 apart a straight line is off by h^2 / 8 times the curvature of the mean,
    below 0.02: 3e-7.
    """
    f = torch.linspace(-5.9, 5.9, 2001)
    assert float((mean(SameMean(nn.Identity())(f)) - f.double().sigmoid()).abs().max()) < 1e-6


@pytest.mark.parametrize("f", [6.0, 6.5, 7.0, 8.0, 10.0, 15.0])
def test_the_mean_is_kept_where_pixels_are_sure(f):
    """Most pixels of digits are: their logits are below -6.

    Of a mean next to 0 or 1 what is left counts: sigmoid(-|f|), to 1 in 1,000.
    """
    logits = torch.tensor([-f, f])
    found = mean(SameMean(nn.Identity())(logits))
    left = torch.stack([found[0], 1 - found[1]])
    torch.testing.assert_close(
        left, torch.sigmoid(torch.tensor([-f, -f]).double()), rtol=1e-3, atol=0.0
    )


def test_larger_logits_are_larger_parameters_and_signs_are_kept():
    f = torch.linspace(-5.9, 5.9, 501)
    out = SameMean(nn.Identity())(f)
    assert bool((out.diff() > 0).all()) and bool((out.sign() == f.sign())[f.abs() > 1e-6].all())
    torch.testing.assert_close(out, -SameMean(nn.Identity())(-f), rtol=1e-4, atol=1e-5)
    assert bool((out.abs() >= f.abs()).all()), (
        "a continuous Bernoulli is vaguer than its parameter says"
    )


def test_any_shape_of_finite_outputs_and_a_decoder_inside():
    decoder = nn.Linear(3, 4)
    z = torch.randn(5, 2, 3)
    out = SameMean(decoder)(z)
    assert out.shape == (5, 2, 4) and out.dtype == torch.float32
    torch.testing.assert_close(mean(out), decoder(z).double().sigmoid(), rtol=0.0, atol=1e-6)
    extreme = SameMean(nn.Identity())(torch.tensor([-1e4, -100.0, 100.0, 1e4]))
    assert bool(extreme.isfinite().all()) and bool(
        (extreme.sign() == torch.tensor([-1, -1, 1, 1])).all()
    )


def test_masses_of_levels_sum_to_one_and_are_densities_times_width():
    f = torch.tensor([-400.0, -3.0, 0.0, 1e-3, 8.0, 90.0], dtype=torch.float64).unsqueeze(-1)
    levels = torch.arange(256, dtype=torch.float64).reshape(-1, 1, 1) / 255
    mass = Binned().log_prob(f, levels).exp()
    torch.testing.assert_close(mass.sum(0), torch.ones(6, dtype=torch.float64))
    law = ContinuousBernoulli().marginals(f.squeeze(-1))
    edges = torch.arange(257, dtype=torch.float64).unsqueeze(-1) / 256
    torch.testing.assert_close(mass, law.cdf(edges).diff(dim=0), rtol=1e-6, atol=1e-12)


def test_a_bounded_decoder_is_what_the_bounded_likelihood_sees():
    f = torch.linspace(-100, 100, 21)
    torch.testing.assert_close(ContinuousBernoulli(16.0).marginals(f).logits, Bounded(16.0)(f))


# --- the experiment -------------------------------------------------------------------------------


def test_quick_run_has_a_table_per_set_and_a_row_per_reading():
    result = quick()
    assert [table.title for table in result.outcome.tables] == list(
        SETS
    ) and not result.outcome.figures
    for table in result.outcome.tables:
        assert [row.label for row in table.rows] == [
            "continuous Bernoulli",
            "continuous Bernoulli, |logits| below 16",
            "plain Bernoulli, read as it is",
            "plain Bernoulli, read by its mean",
        ]
        right, bounded, as_it_is, by_mean = (row.measured for row in table.rows)
        assert set(right) == set(bounded) == set(as_it_is) == set(table.columns) and set(
            by_mean
        ) == {"log P"}
        assert all(math.isfinite(value) for row in table.rows for value in row.measured.values())
        for row in (right, bounded, as_it_is):
            assert (
                0 <= row["accuracy"] <= 100
                and 0 < row["squared error"] < 1
                and 0 < row["sample mean"] < 1
            )
    assert [check.name.split(":")[0] for check in result.outcome.checks] == list(SETS)
    assert result.outcome.checks[0].name in render(result.page())


def test_the_same_seed_gives_the_same_numbers_and_leaves_the_callers_generator():
    state = torch.get_rng_state()
    rows = [
        [row.measured for table in quick(seed, num_train=20).outcome.tables for row in table.rows]
        for seed in (3, 3, 4)
    ]
    assert rows[0] == rows[1] != rows[2] and torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize(
    ("values", "holds"),
    [
        ((2.0, 1.0, 1.0, 1.5), True),
        ((1.0, 2.0, 1.0, 1.5), True),
        ((1.2, 1.3, 1.0, 1.5), False),
        ((1.2, 1.3, 1.5, 1.0), False),
        ((math.nan, math.nan, 1.0, 1.0), False),
    ],
)
def test_the_check_needs_a_continuous_one_above_both_readings(values, holds, monkeypatch):
    x, y = torch.rand(30, 784), torch.arange(30) % 10
    monkeypatch.setattr("credo_reproduce.continuous_bernoulli.images", lambda *_: ((x, y), (x, y)))
    monkeypatch.setattr(
        ContinuousAgainstPlain,
        "_measure",
        lambda *_: [Row(str(value), {"log P": value}) for value in values],
    )
    found = perform(make_experiment("continuous_bernoulli", {"quick": True})).outcome
    assert [check.holds for check in found.checks] == [holds, holds]


def test_neighbours_of_the_same_images_have_their_labels_and_reconstructions_their_error():
    """A stand-in for a model whose codes are the labels: neighbours are right, and everything is
    measured on the right data.
    """

    class Known:
        def encode(self, x):
            return torch.distributions.Normal(x[:, :1] * 100.0, 1.0)

        def reconstruct(self, x):
            return x + 0.5

        def sample(self, n, seed):
            return torch.full((n, 2), 0.25)

    y = torch.arange(200) % 10
    x = torch.stack([y.float(), torch.zeros(200)], 1)
    found = make_experiment("continuous_bernoulli", {})._shared(
        Known(), (x, y), (x[:37], y[:37]), 0
    )
    assert found == {"squared error": 0.25, "sample mean": 0.25, "accuracy": 100.0}
    wrong = make_experiment("continuous_bernoulli", {})._shared(
        Known(), (x, y), (x[:40], (y[:40] + (torch.arange(40) < 10).long()) % 10), 0
    )
    assert wrong["accuracy"] == 75.0
