"""Tests of sparse variational dropout on MNIST, with made-up images of its form."""

import pytest
from zoo.images import digits_like

from credo import compress
from credo.core.errors import SettingError
from credo.nets import lenet5_caffe, lenet_300_100
from credo_reproduce.base import make_experiment, perform

MAKE = {"lenet300": lenet_300_100, "lenet5": lenet5_caffe}


@pytest.fixture(scope="module", params=MAKE)
def result(request, tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setattr("credo_reproduce.probes.load", digits_like)
    folder = tmp_path_factory.mktemp("files")
    settings = {
        "quick": True,
        "nets": request.param,
        "num_train": 200,
        "num_test": 100,
        "num_held_out": 50,
        "files": str(folder),
    }
    if request.param == "lenet300":
        settings |= {"shift": 0}
    yield request.param, folder, perform(make_experiment("sparse_mnist", settings))
    patch.undo()


def test_counts_files_and_checks(result):
    name, folder, done = result
    counts, files = done.outcome.tables
    assert [row.label.split(", ")[1] for row in counts.rows][:2] == ["dense", "log alpha < 3"]
    first, last = counts.rows[1].measured, counts.rows[3].measured
    assert (
        0 <= last["error %"] <= 100
        and 1.0 <= first["weights, times fewer"] < last["weights, times fewer"]
    )
    (file,) = files.rows
    assert (folder / f"{name}.credo").stat().st_size == file.measured["bytes"]
    assert (
        compress.pruned_of(compress.decode(folder / f"{name}.credo", MAKE[name]())).nonzero
        <= file.measured["numbers left"]
    )
    assert len(done.outcome.checks) == 3 and done.outcome.checks[2].holds


def test_pictures_of_weights_over_epochs(result):
    name, _, done = result
    mosaics = [figure for figure in done.outcome.figures if figure["kind"] == "mosaic"]
    assert [f["height"] for f in mosaics] == ([5, 100] if name == "lenet5" else [100])
    assert all(
        len(f["pixels"]) == f["rows"] * f["columns"] * f["height"] * f["width"]
        and max(f["pixels"]) == 1.0
        for f in mosaics
    )


def test_unknown_networks_are_refused():
    with pytest.raises(SettingError, match="expected nets of lenet300, lenet5"):
        perform(make_experiment("sparse_mnist", {"quick": True, "nets": "vgg"}))


def test_a_missing_folder_is_refused_before_any_training(tmp_path):
    with pytest.raises(SettingError, match="missing' is not a folder; make it first"):
        perform(
            make_experiment("sparse_mnist", {"quick": True, "files": str(tmp_path / "missing")})
        )
