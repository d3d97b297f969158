"""Tests of Laplace's calibration on CIFAR-10, with made-up images of its form."""

import pytest
import torch
from zoo.images import made_up

from credo_reproduce import probes
from credo_reproduce.base import make_experiment, perform
from credo_reproduce.ensembles import Score
from credo_reproduce.laplace_calibration import ROWS, _checks


@pytest.fixture
def images(monkeypatch):
    monkeypatch.setattr(probes, "load", lambda name: made_up(name, 120, 60))


def test_every_row_is_around_one_network_that_has_learned(images):
    result = perform(
        make_experiment("laplace_calibration", {"quick": True, "epochs": 20, "width": 4})
    )
    rows = {row.label: row.measured for row in result.outcome.tables[0].rows}
    assert list(rows) == ["the network", *ROWS]
    # chance is 90: its weights and statistics are the trained ones
    assert rows["the network"]["error %"] < 75
    for label in ROWS:
        assert 0 <= rows[label]["error %"] <= 100 and rows[label]["seconds"] > 0
        # few weights for 120 images: the mean prediction is about the network's
        if label.startswith("last layer"):
            assert abs(rows[label]["error %"] - rows["the network"]["error %"]) < 25


def test_layers_are_convolutions_and_the_last_layer_without_normalisation(images):
    made = make_experiment("laplace_calibration", {"quick": True})
    train, _ = probes.colour_images("cifar10", torch.device("cpu"), 120, 60)
    net = made._trained(train, 0, torch.device("cpu"))
    bnn = made._around(net, ROWS["all layers, KFAC"], train, train, torch.device("cpu"))
    assert len(bnn.model.random) > 5 and all(
        "norm" not in name and "bn" not in name for name in bnn.model.random
    )
    assert {family.name for family in bnn.posterior.factors if family.atoms != 1} == {"eigen_kron"}


def test_checks_can_fail():
    scores = {
        "the network": Score(10.0, 0.3, 0.01),
        "a": Score(10.0, 0.4, 0.02),
        "b": Score(10.0, 0.5, 0.03),
    }
    assert [check.holds for check in _checks(scores)] == [False, False]
    scores["a"] = Score(10.0, 0.2, 0.005)
    assert [check.holds for check in _checks(scores)] == [True, True]
