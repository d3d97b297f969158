"""Tests of the random labels, with made-up images."""

import math

import pytest
import torch
from torch import nn
from zoo.images import digits_like, made_up

from credo.core.errors import SettingError
from credo.report.html import render
from credo_reproduce import probes
from credo_reproduce.base import make_experiment, perform
from credo_reproduce.message_length import Length
from credo_reproduce.random_labels import _checks, _label

CPU = torch.device("cpu")


@pytest.fixture(scope="module", autouse=True)
def images():
    patch = pytest.MonkeyPatch()
    patch.setattr(
        probes, "load", lambda name: digits_like(name) if name == "mnist" else made_up(name)
    )
    yield
    patch.undo()


def test_quick_run_of_both_networks():
    result = perform(make_experiment("random_labels", {"quick": True}))
    dense, convolutional = result.outcome.tables
    for table in (dense, convolutional):
        empty, sparse, dropped, little, full = table.rows
        assert (
            empty.measured["data bits"] == pytest.approx(60 * math.log2(10))
            and empty.measured["model bits"] == 0.0
        )
        assert [row.label for row in (little, full)] == [_label(0.1), _label(1.0)]
        assert dropped.paper["train accuracy %"] == 100.0 and "model bits" not in dropped.measured
        for row in (sparse, little, full):
            assert 0 < row.measured["model bits"] <= row.measured["as training counts"]
            both = row.measured["data bits"] + row.measured["model bits"]
            assert row.measured["total / empty"] == pytest.approx(both / (60 * math.log2(10)))
    bits, sparsity = result.outcome.figures[:2]
    assert [len(line["x"]) for line in bits["lines"]] == [2, 2, 2] and len(
        sparsity["lines"][0]["y"]
    ) == 2
    assert len(result.outcome.checks) == 12 and "learned by heart" in render(result.page())


def test_nothing_is_learned_where_there_is_nothing_to_learn():
    """In small: 40 labels, learned by heart by one network, given up by the other from both starts
    (from the second not quite, in this time).
    """
    small = {
        "nets": "mnist_fc",
        "num_train": 40,
        "num_test": 100,
        "hidden": 60,
        "layers": 1,
        "batch": 40,
        "epochs": 150,
        "dropout_epochs": 500,
        "around_epochs": 250,
        "warmup": 30,
        "betas": "0.01,1",
        "lr": 4e-3,
        "rate": 0.1,
        "draws": 4,
    }
    result = perform(make_experiment("random_labels", small))
    empty, sparse, dropped, heart, back = (row.measured for row in result.outcome.tables[0].rows)
    assert sparse["sparsity %"] > 99.9 and sparse["total / empty"] == pytest.approx(1.0, abs=0.05)
    assert sparse["train accuracy %"] < 30.0 < 95.0 < dropped["train accuracy %"]
    assert (
        heart["train accuracy %"] > 95.0
        and heart["data bits"] < 0.2 * empty["data bits"]
        and heart["total / empty"] > 20.0
    )
    assert (
        back["train accuracy %"] < 30.0
        and back["sparsity %"] > 99.0
        and back["total / empty"] < 10.0
    )


def test_labels_are_uniform_and_follow_the_seed():
    made = make_experiment("random_labels", {"quick": True, "num_train": 200})
    first, again, other = (made._case("mnist_fc", CPU, seed).train[1] for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)
    true = torch.as_tensor(digits_like("mnist")["y_train"].astype(int))
    assert (
        float((first == true).double().mean()) < 0.25
        and int(first.bincount(minlength=10).min()) > 5
    )


def test_both_networks_of_a_case_have_the_same_parameters():
    made = make_experiment("random_labels", {"quick": True, "rate": 0.3, "vgg_rate": 0.5})
    for name, rates in (("mnist_fc", [0.3] * 3), ("cifar_vgg", [0.15, *[0.2] * 7, 0.25, 0.25])):
        plain, dropped = (made._net(name, 0, dropout) for dropout in (False, True))
        assert [m.p for m in dropped.modules() if isinstance(m, nn.Dropout)] == pytest.approx(rates)
        assert not any(isinstance(m, nn.Dropout) for m in plain.modules())
        pairs = list(zip(plain.state_dict().values(), dropped.state_dict().values(), strict=True))
        assert pairs and all(torch.equal(a, b) for a, b in pairs)


def test_checks_can_fail():
    def made(train, data, model):
        return Length(train, 10.0, 100.0 if model == 0 else 50.0, data, data, model, model)

    lengths = {
        "sparse variational dropout": made(11.0, 1001.0, 0.0),
        _label(0.1): made(99.0, 10.0, 5000.0),
        _label(1.0): made(10.0, 1000.0, 0.0),
    }
    assert all(check.holds for check in _checks("a", 1000.0, lengths, (99.0, 10.0)))
    cheap = {
        "sparse variational dropout": made(60.0, 500.0, 900.0),
        _label(0.1): made(99.0, 10.0, 500.0),
        _label(1.0): made(99.0, 10.0, 500.0),
    }
    assert not any(check.holds for check in _checks("a", 1000.0, cheap, (50.0, 10.0)))
    nobody = {label: made(10.0, 1000.0, 0.0) for label in lengths}
    assert not _checks("a", 1000.0, nobody, (99.0, 10.0))[4].holds


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"nets": "mnist"}, "expected some of mnist_fc, cifar_vgg"),
        ({"nets": "mnist_fc,mnist_fc"}, "each once"),
        ({"betas": "0.1"}, "expected 1 and at least one smaller"),
        ({"betas": "1,2"}, "expected 1 and at least one smaller"),
        ({"betas": "0.1,x"}, "expected different numbers above 0"),
        ({"num_train": 41}, "last batch of one image"),
    ],
)
def test_bad_settings_are_refused_before_any_work(settings, words):
    with pytest.raises(SettingError, match=words):
        perform(make_experiment("random_labels", {"quick": True} | settings))
