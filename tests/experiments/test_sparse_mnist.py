"""Tests of sparse variational dropout on MNIST, with made-up images of its form."""

import pytest
from zoo.images import digits_like

from credo.core.errors import SettingError
from credo.experiments import make_experiment, perform


@pytest.fixture(scope="module", params=["lenet300", "lenet5"])
def result(request, tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setattr("credo.experiments.probes.load", digits_like)
    folder = tmp_path_factory.mktemp("files")
    settings = {"quick": True, "nets": request.param, "num_train": 200, "num_test": 100, "held": 50, "files": str(folder)}
    if request.param == "lenet5":
        settings |= {"shift": 1, "epochs": 1}
    yield request.param, folder, perform(make_experiment("sparse_mnist", settings))
    patch.undo()


def test_counts_files_and_checks(result):
    name, folder, done = result
    counts, files = done.outcome.tables
    assert [row.label.split(", ")[1] for row in counts.rows][:2] == ["dense", "log alpha < 3"]
    chosen = counts.rows[2].measured
    assert 0 <= chosen["error %"] <= 100 and chosen["weights, times fewer"] >= 1.0
    (file,) = files.rows
    assert (folder / f"{name}.credo").stat().st_size == file.measured["bytes"]
    assert len(done.outcome.checks) == 2 and done.outcome.checks[1].holds


def test_unknown_networks_are_refused():
    with pytest.raises(SettingError, match="expected nets of lenet300, lenet5"):
        perform(make_experiment("sparse_mnist", {"quick": True, "nets": "vgg"}))
