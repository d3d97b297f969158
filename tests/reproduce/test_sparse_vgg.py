"""Tests of the sparse VGG-like network, with made-up images of CIFAR-10's form."""

import copy

import pytest
import torch
from torch import nn
from zoo.images import made_up

from credo import compress
from credo.bnn import BNN
from credo.core.errors import SettingError
from credo.core.seeds import isolated
from credo.nets import Augmented, CropFlip, vgg
from credo.report.html import render
from credo_reproduce import probes
from credo_reproduce.base import make_experiment, perform
from credo_reproduce.sparse_vgg import Score, _checks, accuracy, with_batch_statistics

CPU = torch.device("cpu")


def norms(net):
    return [
        module for module in net.modules() if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d))
    ]


@pytest.fixture(scope="module", autouse=True)
def images():
    patch = pytest.MonkeyPatch()
    patch.setattr(probes, "load", made_up)
    yield
    patch.undo()


def test_rows_counts_and_figures():
    result = perform(make_experiment("sparse_vgg", {"quick": True}))
    (table,) = result.outcome.tables
    assert [row.label.split(" (")[0] for row in table.rows] == [
        f"k = {k}, {what}"
        for k in ("0.02", "0.03")
        for what in ("dense", "log alpha < 3", "chosen")
    ]
    for place, k in ((0, 0.02), (3, 0.03)):
        total = sum(p.numel() for p in vgg(10, k).parameters() if p.dim() > 1)
        dense, plain, chosen = (row.measured for row in table.rows[place : place + 3])
        assert dense["weights left"] == total
        for row in (plain, chosen):
            assert row["weights left"] == round(total * (1 - row["sparsity %"] / 100)) <= total
            assert row["weights, times fewer"] == pytest.approx(total / row["weights left"])
        assert chosen["weights left"] <= plain["weights left"]
    errors, fewer, held = result.outcome.figures
    assert errors["lines"][0]["x"] == [0.02, 0.03] and len(held["lines"]) == 2
    assert fewer["lines"][0]["y"][0] == table.rows[2].measured["weights, times fewer"]
    assert len(result.outcome.checks) == 3 and "Compression by width" in render(result.page())


def test_the_dense_network_has_learned_and_brings_its_statistics():
    made = make_experiment("sparse_vgg", {"quick": True, "pretrain": 40})
    train, _ = probes.colour_images("cifar10", CPU, 60, 30)
    net = made._dense(0.1, train, 0, CPU)
    assert not net.training and accuracy(net, train) > 40.0  # chance is 10
    fresh = vgg(10, 0.1).eval()
    fresh.load_state_dict(dict(net.named_parameters()) | dict(fresh.named_buffers()))
    # the same weights with statistics of no data
    assert accuracy(fresh, train) < accuracy(net, train)


def test_statistics_are_those_of_the_pruned_means():
    """One batch with all images: means and variances over them, layer by layer, in place of those
    of noisy weights.
    """
    train, _ = probes.colour_images("cifar10", CPU, 40, 30)
    with isolated(0):
        net = Augmented(vgg(10, 0.03), CropFlip())
    bnn = BNN(net).fit(train, "sparse_vd", epochs=1, batch_size=20, init_std=0.1, progress=False)
    pruned = compress.prune(bnn)
    ready = with_batch_statistics(pruned, bnn, train, 40, 0)
    assert not ready.training and all(
        torch.equal(a, b) for a, b in zip(ready.parameters(), pruned.net.parameters(), strict=True)
    )
    direct = copy.deepcopy(pruned.net)
    for norm in norms(direct):
        norm.train().momentum = 1.0
    direct(train[0])
    for ours, theirs, before in zip(norms(ready), norms(direct), norms(pruned.net), strict=True):
        torch.testing.assert_close(ours.running_mean, theirs.running_mean, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(ours.running_var, theirs.running_var, rtol=1e-4, atol=1e-5)
        assert not torch.equal(ours.running_var, before.running_var)


def test_checks_can_fail():
    good = {0.5: Score(10.0, 10.5, 20.0), 1.0: Score(9.0, 9.9, 50.0)}
    assert [check.holds for check in _checks(good)] == [True] * 4
    bad = {0.5: Score(10.0, 11.5, 50.0), 1.0: Score(9.0, 10.1, 20.0)}
    assert [check.holds for check in _checks(bad)] == [False] * 4
    assert len(_checks({0.25: Score(9.0, 9.0, 2.0)})) == 1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"widths": "1,0"}, "widths='1,0' is not valid; expected different numbers above 0"),
        ({"widths": "1,1"}, "expected different numbers"),
        ({"widths": ""}, "expected different numbers"),
        ({"num_held_out": 60}, "expected images to train on"),
        ({"num_held_out": 19}, "no last batch of one"),
    ],
)
def test_bad_settings_are_refused_before_any_work(settings, words):
    with pytest.raises(SettingError, match=words):
        perform(make_experiment("sparse_vgg", {"quick": True} | settings))
