"""Tests of group sparsity on MNIST, with made-up images of its form."""

import pytest
import torch
from zoo.images import digits_like

from credo.compress import Pruned
from credo.core.errors import SettingError
from credo.nets import lenet5_caffe
from credo_reproduce.base import make_experiment, perform
from credo_reproduce.group_mnist import units


@pytest.mark.parametrize("net", ["lenet300", "lenet5"])
def test_units_bits_and_files(net, tmp_path, monkeypatch):
    monkeypatch.setattr("credo_reproduce.probes.load", digits_like)
    settings = {
        "quick": True,
        "nets": net,
        "num_train": 200,
        "num_test": 100,
        "num_held_out": 50,
        "files": str(tmp_path),
        "epochs": 1,
    }
    done = perform(make_experiment("group_mnist", settings))
    dense, *rows = done.outcome.tables[0].rows
    assert 0 <= dense.measured["error %"] <= 100 and len(rows) == 2 == len(done.outcome.checks)
    for row, method in zip(rows, ["group_normal_jeffreys", "group_horseshoe"], strict=True):
        found = row.measured
        assert len(found["units"].split("-")) == (3 if net == "lenet300" else 4)
        assert 1.0 <= found["pruning"] <= found["fast prediction"]
        size = sum(
            p.numel()
            for p in (
                lenet5_caffe() if net == "lenet5" else torch.nn.Linear(266_609, 1)
            ).parameters()
        )
        assert found["maximum compression"] == pytest.approx(
            4 * size / (tmp_path / f"{net}_{method}.credo").stat().st_size
        )


def test_units_of_a_mask():
    net = lenet5_caffe()
    masks = {
        n: torch.zeros_like(p, dtype=torch.bool) for n, p in net.named_parameters() if p.dim() > 1
    }
    masks["0.weight"][:3, 0, 1, 1] = True
    masks["5.weight"][7, 10:15] = True
    assert units(Pruned(net, masks, {}, "own", None)) == [3, 0, 5, 0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"methods": "sparse_vd"}, "expected group_normal"), ({"nets": "a"}, "expected nets of")],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(SettingError, match=message):
        perform(make_experiment("group_mnist", {"quick": True} | settings))
