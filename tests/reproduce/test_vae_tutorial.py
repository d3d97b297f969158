"""Tests of the experiment on a tutorial's training ELBO."""

import math

import pytest
import torch

from credo.core.errors import DataError
from credo.data import load
from credo.report.html import render
from credo_reproduce.base import make_experiment, perform
from credo_reproduce.vae_tutorial import LIMIT, SOURCE


def quick(seed=0, **settings):
    try:
        load("mnist")
    except DataError as error:
        pytest.skip(f"needs MNIST: {error}")
    return perform(make_experiment("vae_tutorial", {"quick": True, **settings}), seed=seed)


def outcome(*runs):
    experiment = make_experiment("vae_tutorial", {"epochs": len(runs[0]), "seeds": len(runs)})
    return experiment._outcome(
        {"Bernoulli": [list(run) for run in runs], "continuous Bernoulli": [[1.0] * len(runs[0])]},
        0,
    )


def test_quick_run_has_both_likelihoods_by_epoch():
    result = quick()
    (table,), (figure,) = result.outcome.tables, result.outcome.figures
    assert [row.label for row in table.rows] == ["Bernoulli", "continuous Bernoulli"]
    assert list(table.columns) == [f"epoch {n}" for n in range(1, 7)]
    assert all(
        set(row.measured) == set(table.columns) and all(map(math.isfinite, row.measured.values()))
        for row in table.rows
    )
    assert tuple(table.rows[0].paper.values()) == SOURCE and not table.rows[1].paper
    bernoulli = list(table.rows[0].measured.values())
    assert bernoulli[-1] > bernoulli[0], "training climbs"
    assert (
        all(len(line["x"]) == len(line["y"]) == 6 for line in figure["lines"])
        and len(figure["lines"]) == 2
    )
    assert figure["title"] in render(result.page())


@pytest.mark.parametrize("epochs", [1, 8])
def test_other_numbers_of_epochs(epochs):
    result = quick(epochs=epochs)
    table, (log, ours) = result.outcome.tables[0], result.outcome.figures[0]["lines"]
    assert len(table.columns) == epochs and len(table.rows[0].paper) == min(epochs, 6)
    assert (
        len(log["x"]) == len(log["y"]) == min(epochs, 6)
        and ours["x"] == list(range(1, epochs + 1))
        and len(ours["y"]) == epochs
    )


def test_the_same_seed_gives_the_same_numbers_and_leaves_the_callers_generator():
    state = torch.get_rng_state()
    rows = [
        [row.measured for row in quick(seed, epochs=2).outcome.tables[0].rows] for seed in (3, 3, 4)
    ]
    assert rows[0] == rows[1] != rows[2] and torch.equal(state, torch.get_rng_state())


def test_lines_are_named_after_the_seeds_they_were_made_with():
    lines = quick(seed=7, seeds=2, epochs=1).outcome.figures[0]["lines"]
    assert [line["name"] for line in lines[1:]] == ["seed 7", "seed 8"]


def test_the_check_is_of_the_mean_of_the_last_epoch():
    above, below = [-400.0, LIMIT + 2], [-150.0, LIMIT - 1]
    (good,) = outcome(above, below).checks
    assert (
        good.holds
        and "from -199.0 to -196.0" in good.measured
        and good.measured.startswith("-197.5")
    )
    assert not outcome(below, below, below, above).checks[0].holds, "-198.25 on average"
    assert (
        not outcome(below).checks[0].holds
        and not outcome([0.0, math.nan]).checks[0].holds
        and outcome([-400.0, LIMIT]).checks[0].holds
    )


def test_rows_are_means_over_seeds():
    (table,) = outcome([-300.0, -200.0], [-310.0, -190.0]).tables
    assert list(table.rows[0].measured.values()) == [-305.0, -195.0] and table.rows[0].paper == {
        "epoch 1": SOURCE[0],
        "epoch 2": SOURCE[1],
    }
