"""The files in ``benchmarks/results`` are what their names say: LeNets in so many bytes that still
read digits.
"""

import json
import runpy
from pathlib import Path

import pytest
import torch
from zoo.images import digits_like

from credo import compress
from credo.core.errors import DataError
from credo_reproduce.lenets import NETS, error
from credo_reproduce.probes import images

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
FILES = sorted(RESULTS.glob("lenet*.credo"))
#: stem of a file -> error in per cent that it stays below, and times smaller than float32 at least
LIMITS = {
    "lenet300": (1.92, 380.0),
    "lenet300_group_horseshoe": (1.8, 140.0),
    "lenet300_group_normal_jeffreys": (1.95, 138.0),
    "lenet5": (0.8, 900.0),
    "lenet5_small": (0.96, 1110.0),
    "lenet5_small_8": (1.1, 1240.0),
    "lenet5_group_horseshoe": (1.25, 900.0),
    "lenet5_group_normal_jeffreys": (1.0, 990.0),
}


def network(path):
    return path.stem.split("_")[0]


@pytest.fixture(scope="module")
def digits():
    try:
        x, y = images("mnist", torch.device("cpu"))[1]
    except DataError as missing:
        pytest.skip(str(missing))
    return x.reshape(-1, 1, 28, 28), y


@pytest.mark.parametrize("path", FILES, ids=[path.name for path in FILES])
def test_a_stored_file_is_small(path):
    net = NETS[network(path)].make()
    whole = 4 * sum(p.numel() for p in net.parameters())
    assert whole / path.stat().st_size >= LIMITS[path.stem][1]
    assert compress.pruned_of(compress.decode(path, net)).nonzero < 0.1 * whole / 4


@pytest.mark.parametrize("path", FILES, ids=[path.name for path in FILES])
def test_a_stored_file_reads_digits(path, digits):
    net = compress.decode(path, NETS[network(path)].make())
    assert error(net, digits) < LIMITS[path.stem][0]


def test_a_stored_file_goes_on_shrinking_by_a_command(tmp_path, monkeypatch):
    monkeypatch.setattr("credo_reproduce.probes.load", digits_like)
    script, out = RESULTS.parent / "shrink_file.py", tmp_path / "small.credo"
    words = [
        "--weights",
        "900",
        "--rounds",
        "2",
        "--retrain",
        "0",
        "--finish",
        "0",
        "--levels",
        "4",
        "--out",
        str(out),
    ]
    monkeypatch.setattr("sys.argv", [str(script), str(RESULTS / "lenet5.credo"), *words])
    threads = torch.get_num_threads()
    runpy.run_path(str(script), run_name="__main__")
    torch.set_num_threads(threads)
    record = json.loads(out.with_suffix(".json").read_text())
    assert record["bytes"] == out.stat().st_size < (RESULTS / "lenet5.credo").stat().st_size
    net = compress.decode(out, NETS["lenet5"].make())
    assert (
        record["weights"]
        == sum(int(p.count_nonzero()) for p in net.parameters() if p.dim() > 1)
        <= 920
    )
    assert all(len(p[p != 0].unique()) <= 4 for p in net.parameters() if p.dim() > 1)


@pytest.mark.parametrize("words", [["--weights", "0"], ["--weights", "500000"], ["--rounds", "0"]])
def test_counts_that_make_no_sense_are_refused_at_once(words, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("credo_reproduce.probes.load", digits_like)
    script = RESULTS.parent / "shrink_file.py"
    monkeypatch.setattr(
        "sys.argv",
        [
            str(script),
            str(RESULTS / "lenet5.credo"),
            *words,
            "--out",
            str(tmp_path / "small.credo"),
        ],
    )
    with pytest.raises(SystemExit):
        runpy.run_path(str(script), run_name="__main__")
    assert "expected 1 to 1480 weights" in capsys.readouterr().err and not list(tmp_path.iterdir())
