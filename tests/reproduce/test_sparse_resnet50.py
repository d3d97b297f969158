"""Tests of the timed recipe of ResNet-50."""

import pytest
import torch
from torch.distributions import Normal

from credo.bnn import BNN
from credo.core.errors import SettingError
from credo.core.seeds import isolated, mix
from credo.nets import resnet50
from credo_reproduce.base import make_experiment, perform
from credo_reproduce.sparse_resnet50 import IMAGES, MAKERS, Contestant, hours


@pytest.fixture(scope="module")
def heard():
    return []


@pytest.fixture(scope="module")
def result(heard):
    return perform(make_experiment("sparse_resnet50", {"quick": True}), say=heard.append)


def test_rows_and_their_arithmetic(result, heard):
    (table,) = result.outcome.tables
    plain, sparse = (row.measured for row in table.rows)
    weights = sum(p.numel() for p in resnet50(width=8).parameters() if p.dim() > 1)
    # convolutions and the last layer, not biases and scales
    assert heard[0] == f"ready: {weights:,} random weights"
    assert sparse["times the deterministic step"] == pytest.approx(
        sparse["ms per step"] / plain["ms per step"]
    )
    assert sparse["images per second"] == pytest.approx(2000.0 / sparse["ms per step"])
    assert sparse["peak memory, GiB"] is None  # no GPU here
    assert plain["accuracy %"] == sparse["accuracy %"] == "not run" and "were not run" in table.note


def test_objectives_are_finite(result):
    assert result.outcome.checks[1].holds


def test_a_step_is_that_of_fit():
    """The second step's nll of the deterministic network, and the KL of the sparse one, are those
    that ``fit`` records.
    """
    source, cpu = torch.Generator().manual_seed(0), torch.device("cpu")
    data = torch.randn(4, 3, 32, 32, generator=source), torch.arange(4)
    with isolated(mix(0, "net")):
        bnn = BNN(resnet50(width=8), "categorical", prior=Normal(0.0, 1.0))
    options = {"epochs": 2, "batch_size": None, "num_data": IMAGES, "progress": False}

    made = make_experiment("sparse_resnet50", {"quick": True, "batch": 4, "lr": 1e-3})
    nll, _ = made._contestant(MAKERS["map"], data, 0, cpu).step()
    told = bnn.fit(data, "map", lr=1e-3, **options).history
    assert abs(told[1]["nll"] / told[0]["nll"] - 1.0) > 0.01  # the first step has moved it
    assert float(nll) * IMAGES / 4 == pytest.approx(told[1]["nll"], rel=1e-3)

    made = make_experiment(
        "sparse_resnet50", {"quick": True, "batch": 4, "lr": 1e-9}
    )  # so that the noise of a step moves nothing
    _, kl = made._contestant(MAKERS["sparse_vd"], data, 0, cpu).step()
    assert float(kl) == pytest.approx(
        bnn.fit(data, "sparse_vd", lr=1e-9, **options).history[1]["kl"], rel=1e-4
    )


def test_hours_count_whole_steps():
    assert hours(3600.0, 1_281_166) == 180.0 and hours(1.0, 1_281_167) == 90 / 3600


def test_checks_can_fail():
    made = make_experiment("sparse_resnet50", {})
    each = dict.fromkeys(("map", "sparse_vd"), Contestant(lambda: None, 1, 2**30))
    good = made._outcome(each, {"map": 0.1, "sparse_vd": 0.4}, {"map": True, "sparse_vd": True})
    bad = made._outcome(each, {"map": 0.1, "sparse_vd": 0.41}, {"map": True, "sparse_vd": False})
    assert [check.holds for check in good.checks] == [True, True] and [
        check.holds for check in bad.checks
    ] == [False, False]
    assert good.tables[0].rows[0].measured["peak memory, GiB"] == 1.0


@pytest.mark.parametrize(("setting", "value"), [("size", 16), ("batch", 1), ("rounds", 0)])
def test_bad_sizes_are_refused(setting, value):
    with pytest.raises(SettingError, match=f"{setting}={value} is not valid"):
        make_experiment("sparse_resnet50", {setting: value})
