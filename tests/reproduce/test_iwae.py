"""Tests of the experiment on importance-weighted autoencoders."""

import math

import pytest
import torch

from credo.core.errors import DataError, SettingError
from credo.data import load
from credo.report.html import render
from credo_reproduce.base import make_experiment, perform
from credo_reproduce.iwae import KINDS, LIMITS, PAPER

TIMES = {"seconds per epoch"}


def quick(seed=0, **settings):
    try:
        load("mnist")
    except DataError as error:
        pytest.skip(f"needs MNIST: {error}")
    return perform(make_experiment("iwae", {"quick": True, **settings}), seed=seed)


def made_up(**nll):
    return {
        name: {
            "nll": value,
            "train nll": value,
            "-ELBO": value + 1,
            "active": 3,
            "seconds per epoch": 0.1,
            "curve": [200.0, value],
        }
        for name, value in nll.items()
    }


def outcome(**nll):
    return make_experiment("iwae", {})._outcome(made_up(**nll))


def held(**nll):
    return {check.name: check.holds for check in outcome(**nll).checks}


def test_quick_run_has_a_row_and_a_line_per_model():
    result = quick()
    (table,), (figure,) = result.outcome.tables, result.outcome.figures
    assert [row.label for row in table.rows] == ["VAE", "IWAE, K = 5"]
    assert all(set(row.measured) == set(table.columns) for row in table.rows)
    assert all(math.isfinite(value) for row in table.rows for value in row.measured.values())
    assert all(
        row.measured["-ELBO"] > row.measured["nll"] > 0 and 0 <= row.measured["active"] <= 5
        for row in table.rows
    )
    assert [(line["name"], line["x"], len(line["y"])) for line in figure["lines"]] == [
        (row.label, [1, 2], 2) for row in table.rows
    ]
    assert [check.name for check in result.outcome.checks] == [
        "VAE: test nll",
        "More draws fit better",
    ]
    assert figure["title"] in render(result.page())


def test_every_model_runs():
    result = quick(models="doubly50,iwae50", num_test=5)
    assert [row.label for row in result.outcome.tables[0].rows] == [
        KINDS["doubly50"][0],
        KINDS["iwae50"][0],
    ]


def test_the_same_seed_gives_the_same_numbers_and_leaves_the_callers_generator():
    state = torch.get_rng_state()
    rows = [
        [
            {k: v for k, v in row.measured.items() if k not in TIMES}
            for row in quick(seed, models="vae").outcome.tables[0].rows
        ]
        for seed in (3, 3, 4)
    ]
    assert rows[0] == rows[1] != rows[2] and torch.equal(state, torch.get_rng_state())


def test_a_single_epoch_has_a_time_or_none_but_not_zero():
    (row,) = quick(models="vae", epochs=1).outcome.tables[0].rows
    assert row.measured["seconds per epoch"] is None or row.measured["seconds per epoch"] > 0


@pytest.mark.parametrize("models", ["vae,wae", "", "vae;iwae5", "vae,"])
def test_unknown_models_are_refused_before_any_data_are_read(models, monkeypatch):
    monkeypatch.setattr("credo_reproduce.iwae.images", lambda *_: pytest.fail("data were read"))
    with pytest.raises(SettingError, match="models="):
        perform(make_experiment("iwae", {"models": models}))


def test_checks_compare_with_limits_and_ask_for_falling_values():
    assert held(vae=87.0, iwae5=86.0, iwae50=85.0) == {
        "VAE: test nll": True,
        "IWAE, K = 50: test nll": True,
        "More draws fit better": True,
    }
    assert held(vae=88.0, iwae5=87.0, iwae50=86.0) == {
        "VAE: test nll": False,
        "IWAE, K = 50: test nll": False,
        "More draws fit better": True,
    }
    assert not held(vae=87.0, iwae5=87.5, iwae50=85.0)["More draws fit better"]
    assert not held(vae=85.0, iwae50=85.1)["More draws fit better"]
    assert list(held(iwae5=80.0)) == [] and list(held(doubly50=80.0, iwae50=80.0)) == [
        "IWAE, K = 50: test nll"
    ]
    assert held(vae=LIMITS["vae"], iwae50=LIMITS["iwae50"])["VAE: test nll"]


def test_checks_do_not_hold_for_what_is_no_number():
    assert not any(held(vae=math.nan, iwae5=math.nan, iwae50=math.nan).values())


def test_the_paper_stands_beside_its_models_and_the_figure_shows_the_end():
    found = outcome(vae=87.0, iwae5=86.0, iwae50=85.0)
    assert [dict(row.paper) for row in found.tables[0].rows] == [
        {"nll": PAPER["vae"]},
        {},
        {"nll": PAPER["iwae50"]},
    ]
    low, high = found.figures[0]["y_range"]
    assert low < 85.0 and high > 87.0 and "87.78" in found.tables[0].note
