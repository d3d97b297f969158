"""Tests of the information bottleneck on MNIST, with made-up images of its form."""

import json
import math

import pytest
from zoo.images import digits_like

from credo.core.errors import DataError, SettingError
from credo.data import load
from credo.report.html import render
from credo_reproduce.base import make_experiment, perform
from credo_reproduce.vib import QUIET, Point, _checks, _plane, parse


@pytest.fixture(scope="module")
def result():
    patch = pytest.MonkeyPatch()
    patch.setattr("credo_reproduce.probes.load", digits_like)
    yield perform(make_experiment("vib", {"quick": True, "betas": "3,1e-3,0", "epochs": 4}))
    patch.undo()


def test_a_row_for_every_beta_and_one_without_noise(result):
    (table,) = result.outcome.tables
    assert [row.label for row in table.rows] == [
        "no noise (mle)",
        "beta = 0",
        "beta = 0.001",
        "beta = 3",
    ]
    plain, *noisy = [row.measured for row in table.rows]
    assert plain["rate, nats"] is None and plain["told of y, nats"] is None and plain["nll"] > 0
    for row in noisy:
        assert (
            row["rate, bits"] == pytest.approx(row["rate, nats"] / math.log(2))
            and 0 <= row["error %"] <= 100
        )
        assert row["told of y, nats"] < math.log(10)
    # other sizes than the paper's
    assert not any(row.paper for row in table.rows) and "1.13 % at beta = 0.001" in table.note


def test_figures_checks_and_page(result):
    plane, errors = result.outcome.figures
    # zero has no place on a log axis
    assert len(plane["points"][0]["x"]) == 3 and errors["lines"][0]["x"] == [1e-3, 3.0]
    assert len(result.outcome.checks) == 4
    page = result.page()
    json.dumps(page)
    assert "information plane" in render(page)


def test_the_papers_errors_stand_beside_the_papers_sizes():
    points = [
        Point(None, 1.4, 0.05),
        Point(1e-3, 1.2, 0.05, 20.0, 2.2),
        Point(0.1, 2.0, 0.1, 5.0, 2.0),
    ]
    large = make_experiment("vib", {"hidden": 1024, "latent_dim": 256})
    assert [row.paper.get("error %") for row in large._table(points).rows] == [1.38, 1.13, None]
    assert not any(row.paper for row in make_experiment("vib", {})._table(points).rows)


def test_checks_can_fail():
    plain = Point(None, 1.5, 0.05)
    good = [
        plain,
        Point(1e-3, 1.4, 0.05, 20.0, 2.2),
        Point(0.1, 2.0, 0.1, 5.0, 2.0),
        Point(3.0, 88.0, 2.3, 0.001, -0.01),
    ]
    bad = [
        plain,
        Point(1e-3, 1.6, 0.05, 2.0, 2.2),
        Point(0.1, 2.0, 0.1, 5.0, 2.0),
        Point(3.0, 40.0, 2.3, 1.0, 0.5),
    ]
    assert [check.holds for check in _checks(good, 88.65)] == [True] * 4
    assert [check.holds for check in _checks(bad, 88.65)] == [False] * 4
    assert len(_checks(good[:1] + good[2:3], 88.65)) == 2  # no price above 1, and not the paper's


def test_a_rate_of_nothing_stays_on_the_axis():
    plane = _plane([Point(None, 1.5, 0.05), Point(5.0, 88.0, 2.3, 0.0, 0.0)], 2.3)
    assert plane["points"][0]["x"] == [QUIET] and max(plane["lines"][0]["y"]) <= 2.3


def test_betas():
    assert parse("3, 1e-3,0") == [0.0, 1e-3, 3.0]
    for text in ("", "a", "1,1", "-1", "nan", "1,,2", "inf"):
        with pytest.raises(SettingError, match="betas="):
            parse(text)


def test_quick_run_on_the_real_images():
    try:
        load("mnist")
    except DataError as error:
        pytest.skip(f"needs MNIST: {error}")
    said = []
    assert (
        len(perform(make_experiment("vib", {"quick": True}), say=said.append).outcome.checks) == 4
        and len(said) == 3
    )
