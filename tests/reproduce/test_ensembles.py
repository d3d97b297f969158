"""Tests of the ensembles on CIFAR-10, with made-up images of its form."""

import math

import pytest
import torch
from zoo.images import made_up

from credo.core.errors import DataError
from credo.data import load
from credo.likelihoods import Categorical
from credo.predictive import Predictive
from credo.report.html import render
from credo_reproduce import probes
from credo_reproduce.base import make_experiment, perform
from credo_reproduce.ensembles import Score, _checks


@pytest.fixture(scope="module")
def result():
    patch = pytest.MonkeyPatch()
    patch.setattr(probes, "load", made_up)
    small = {"num_train": 40, "num_test": 30, "batch": 20, "width": 2, "draws": 4}
    yield perform(make_experiment("ensembles", {"quick": True} | small))
    patch.undo()


def test_rows_costs_and_members(result):
    table, members = result.outcome.tables
    rows = {row.label: row.measured for row in table.rows}
    assert list(rows) == ["single", "snapshot", "SWAG", "deep ensemble", "MultiSWAG"]
    assert [row["epochs in all"] for row in rows.values()] == [8, 8, 8, 16, 16]
    assert [row["members or draws"] for row in rows.values()] == [1, 2, 4, 2, 4]
    assert all(
        0 <= row["error %"] <= 100 and row["nll"] > 0 and 0 <= row["ece"] <= 1
        for row in rows.values()
    )
    assert list(members.columns) == ["1", "2"]
    last = {row.label: row.measured["2"] for row in members.rows}
    assert last["deep ensemble: nll"] == pytest.approx(rows["deep ensemble"]["nll"])
    assert last["snapshot: error %"] == pytest.approx(rows["snapshot"]["error %"])


def test_figures_and_checks(result):
    accuracy, nll = result.outcome.figures
    assert [line["name"] for line in nll["lines"]] == ["snapshot", "deep ensemble"] and nll[
        "lines"
    ][0]["x"] == [1, 2]
    members = {row.label: row.measured for row in result.outcome.tables[1].rows}
    assert accuracy["lines"][1]["y"][0] == pytest.approx(
        100 - members["deep ensemble: error %"]["1"]
    )
    assert len(result.outcome.checks) == 4 and "SWAG" in render(result.page())


def test_scores_are_of_averaged_probabilities():
    """Two members that are sure of different labels: half and half, not the average of logits."""
    outputs = torch.tensor([[[20.0, 0.0], [0.0, 20.0]], [[0.0, 20.0], [0.0, 20.0]]])
    score = Score.of(Predictive(outputs, Categorical()), torch.tensor([0, 1]))
    assert score.nll == pytest.approx(0.5 * math.log(2.0), abs=1e-6) and score.error in (0.0, 50.0)


def test_checks_can_fail():
    def made(nll):
        return Score(10.0, nll, 0.0)

    names = ("single", "snapshot", "SWAG", "deep ensemble", "MultiSWAG")
    good = _checks(
        dict(zip(names, map(made, (1.0, 0.9, 0.9, 0.8, 0.7)), strict=True)),
        {"snapshot": [made(1.0), made(0.9)]},
    )
    bad = _checks(
        dict(zip(names, map(made, (1.0, 1.1, 1.0, 0.8, 0.7)), strict=True)),
        {"snapshot": [made(1.0), made(1.0)]},
    )
    assert [check.holds for check in good] == [True] * 3 and [check.holds for check in bad] == [
        False
    ] * 3


def test_images_are_standardised_and_a_share_is_taken_evenly(monkeypatch):
    monkeypatch.setattr(probes, "load", made_up)
    (x, y), (x_test, _) = probes.colour_images("cifar10", torch.device("cpu"), 20, 10)
    assert x.shape == (20, 3, 32, 32) and x_test.shape == (10, 3, 32, 32) and len(y.unique()) > 5
    torch.testing.assert_close(x.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(x.std((0, 2, 3)), torch.ones(3), atol=1e-3, rtol=0)


def test_quick_run_on_the_real_images():
    try:
        load("cifar10")
    except DataError as error:
        pytest.skip(f"needs CIFAR-10: {error}")
    assert len(perform(make_experiment("ensembles", {"quick": True})).outcome.checks) == 4
