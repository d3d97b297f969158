"""Tests of the experiment on posteriors over a decoder's weights."""

import math

import pytest
import torch

from credo.core.errors import CredoError
from credo.report.html import render
from credo_reproduce.base import make_experiment, perform
from credo_reproduce.bayesian_vae import METHODS, MOST, POINTS
from credo_reproduce.outcome import Row

ESTIMATES = ["importance sampling", "annealed", "simulated: lower", "simulated: upper"]


def quick(seed=0, **settings):
    return perform(make_experiment("bayesian_vae", {"quick": True, **settings}), seed=seed)


def checks(gaps=(0.1,), **first):
    found = {name: {"50": first.get(name, -20.0), "100": -10.0} for name in METHODS}
    rows = [
        Row(
            "some method",
            {
                "importance sampling": 0.0,
                "annealed": 0.0,
                "simulated: lower": -5.0,
                "simulated: upper": -5.0 + gap,
            },
        )
        for gap in gaps
    ]
    return make_experiment("bayesian_vae", {})._outcome([50, 100], found, rows).checks


def test_quick_run_has_every_method_by_size_and_both_estimates():
    result = quick()
    (sizes, estimates), (figure,) = result.outcome.tables, result.outcome.figures
    labels = list(METHODS.values())
    assert [row.label for row in sizes.rows] == [row.label for row in estimates.rows] == labels
    assert list(sizes.columns) == ["20", "40"] and list(estimates.columns) == ESTIMATES
    assert all(
        math.isfinite(value) and value < 0
        for table in result.outcome.tables
        for row in table.rows
        for value in row.measured.values()
    )
    assert [(line["name"], line["x"], len(line["y"])) for line in figure["lines"]] == [
        (label, [20, 40], 2) for label in labels
    ]
    assert (
        "after 40 data" in estimates.title
        and len(result.outcome.checks) == 2
        and figure["title"] in render(result.page())
    )


def test_the_same_seed_gives_the_same_numbers_and_leaves_the_callers_generator():
    state, small = torch.get_rng_state(), {"sizes": "20", "steps": 3}
    rows = [
        [row.measured for table in quick(seed, **small).outcome.tables for row in table.rows]
        for seed in (3, 3, 4)
    ]
    assert rows[0] == rows[1] != rows[2] and torch.equal(state, torch.get_rng_state())


def test_points_have_one_draw_of_the_weights():
    experiment = make_experiment("bayesian_vae", {"samples": 7})
    assert {name: experiment._samples(name) for name in METHODS} == {
        name: 1 if name in POINTS else 7 for name in METHODS
    }
    x = torch.ones(20, 64)
    for name in METHODS:
        vae = make_experiment("bayesian_vae", {"quick": True})._fit(x, name, 0, torch.device("cpu"))
        assert len(vae.numbers(3, 0)) == (1 if name in POINTS else 3)


@pytest.mark.parametrize("size", [20, 50, 70, 120, 200])
def test_every_fit_takes_its_steps_whatever_the_number_of_data(size):
    """To within an epoch: an epoch is not cut short."""
    x = torch.ones(size, 64)
    experiment = make_experiment("bayesian_vae", {"quick": True, "steps": 12})
    per_epoch = math.ceil(size / 50)
    made = per_epoch * len(experiment._fit(x, "mle", 0, torch.device("cpu")).history)
    assert abs(made - 12) < per_epoch


@pytest.mark.parametrize("sizes", ["20,many", "", "20;40", "0", "-3", "20,", "1.5"])
def test_sizes_that_are_no_sizes_are_refused(sizes):
    with pytest.raises(CredoError, match="sizes="):
        quick(sizes=sizes)


def test_more_data_than_there_are_are_refused():
    """A column must not be named after data that were never seen."""
    with pytest.raises(CredoError, match="5000"):
        quick(sizes="20,5000")


def test_repeated_sizes_are_refused_or_drawn():
    try:
        result = quick(sizes="20,20", steps=2)
    except CredoError:
        return
    assert all(len(line["x"]) == len(line["y"]) for line in result.outcome.figures[0]["lines"])


def test_bounds_must_meet_in_the_right_order():
    assert (
        checks((0.1, 0.2))[0].holds
        and not checks((0.1, MOST + 0.1))[0].holds
        and not checks((-0.1, 0.1))[0].holds
    )
    assert not checks((math.nan,))[0].holds


def test_what_is_expected_of_the_bounds_is_what_is_checked():
    """The text says from 0."""
    (check, _) = checks((-0.04,))
    assert not check.holds or "from 0" not in check.expected


def test_a_prior_helps_where_any_method_is_above_maximum_likelihood():
    assert checks(mle=-20.0, vi=-19.0)[1].holds and checks(mle=-20.0, map=-19.9)[1].holds
    assert not checks(mle=-20.0, map=-20.1, vi=-21.0, concrete_dropout=-22.0)[1].holds
    assert not checks(mle=-20.0, map=-20.0, vi=-20.0, concrete_dropout=-20.0)[1].holds
    assert (
        "mean field -19.00, maximum likelihood -20.00"
        in checks(mle=-20.0, map=-19.5, vi=-19.0)[1].measured
    )
    assert "With 50 data" in checks()[1].name, "the smallest of the sizes given first"
