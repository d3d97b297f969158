"""Tests of the experiment on log p(x) by draws from the prior and from the encoder."""

import math

import pytest
import torch

from credo.core.errors import DataError, SettingError
from credo.data import load
from credo.report.html import render
from credo_reproduce.base import make_experiment, perform


def quick(seed=0, **settings):
    try:
        load("mnist")
    except DataError as error:
        pytest.skip(f"needs MNIST: {error}")
    return perform(make_experiment("latent_draws", {"quick": True, **settings}), seed=seed)


def checks(prior, encoder, anneal, elbo=-110.0):
    grid = [10**power for power in range(len(prior))]
    found = make_experiment("latent_draws", {})._outcome(
        grid, {"prior": prior, "encoder": encoder}, anneal, elbo
    )
    return [check.holds for check in found.checks]


def test_quick_run_has_both_proposals_over_powers_of_ten():
    result = quick()
    (table,), (figure,) = result.outcome.tables, result.outcome.figures
    assert list(table.columns) == ["1", "10", "100"]
    assert [row.label for row in table.rows] == ["draws from the prior", "draws from the encoder"]
    assert all(
        math.isfinite(value) and value < 0 for row in table.rows for value in row.measured.values()
    )
    assert [line["name"] for line in figure["lines"]] == [
        *(row.label for row in table.rows),
        "annealed importance sampling",
    ]
    assert all(len(line["x"]) == len(line["y"]) for line in figure["lines"]) and figure["lines"][0][
        "x"
    ] == [1, 10, 100]
    assert figure["lines"][2]["x"] == [1, 100] and len(set(figure["lines"][2]["y"])) == 1
    assert len(result.outcome.checks) == 2 and figure["title"] in render(result.page())


@pytest.mark.parametrize(
    ("most", "columns"), [(10, ["1", "10"]), (99, ["1", "10"]), (1000, ["1", "10", "100", "1,000"])]
)
def test_the_grid_ends_at_the_last_power_of_ten(most, columns):
    assert list(quick(most=most).outcome.tables[0].columns) == columns


def test_one_image_is_enough_and_fewer_than_ten_draws_are_not():
    assert quick(num_test=1, num_train=1).outcome.tables[0].rows
    with pytest.raises(SettingError, match="most=9"):
        make_experiment("latent_draws", {"most": 9})


def test_the_same_seed_gives_the_same_numbers_and_leaves_the_callers_generator():
    state = torch.get_rng_state()
    rows = [[row.measured for row in quick(seed).outcome.tables[0].rows] for seed in (3, 3, 4)]
    assert rows[0] == rows[1] != rows[2] and torch.equal(state, torch.get_rng_state())


def test_checks_compare_ten_encoder_draws_with_all_prior_draws_and_the_last_with_annealing():
    assert checks([-300.0, -250.0, -200.0], [-110.0, -105.0, -100.0], -100.5) == [True, True]
    assert checks([-300.0, -250.0, -104.9], [-110.0, -105.0, -100.0], -100.5) == [False, True]
    assert checks([-300.0, -250.0, -200.0], [-110.0, -105.0, -100.0], -101.5) == [True, False]
    assert checks([-300.0, -250.0, -200.0], [-110.0, -105.0, -100.0], -98.5) == [True, False]
    assert checks([math.nan] * 3, [math.nan] * 3, math.nan) == [False, False]
    assert checks([-90.0, -200.0, -200.0], [-110.0, -105.0, -100.0], -100.0) == [True, True], (
        "only the last prior value counts"
    )


def test_tables_and_notes_hold_what_was_measured():
    found = make_experiment("latent_draws", {"num_test": 7})._outcome(
        [1, 10], {"prior": [-3.0, -2.0], "encoder": [-2.0, -1.0]}, -1.25, -2.5
    )
    assert [list(row.measured.values()) for row in found.tables[0].rows] == [
        [-3.0, -2.0],
        [-2.0, -1.0],
    ]
    assert (
        "7 test images" in found.tables[0].note
        and "ELBO -2.50, annealed -1.25" in found.tables[0].note
    )
