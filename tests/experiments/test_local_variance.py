import hashlib

import numpy as np
import pytest

from credo.core.errors import DataError
from credo.experiments import make_experiment, perform
from credo.experiments.local_variance import KINDS, Estimate, _ordering


@pytest.fixture
def mnist(tmp_path, monkeypatch):
    """Images of MNIST's shape whose brightness tells the class."""
    rng = np.random.default_rng(0)
    arrays = {}
    for part, count in (("train", 600), ("test", 50)):
        y = rng.integers(0, 10, count).astype(np.uint8)
        arrays |= {f"x_{part}": (rng.random((count, 28, 28)) * 25 * (y[:, None, None] + 1)).astype(np.uint8), f"y_{part}": y}
    np.savez(tmp_path / "mnist.npz", **arrays)
    digest = hashlib.sha256((tmp_path / "mnist.npz").read_bytes()).hexdigest()
    (tmp_path / "SHA256SUMS").write_text(f"{digest}  mnist.npz\n")
    monkeypatch.setenv("CREDO_DATA", str(tmp_path))


def test_quick_run_measures_ratios_and_time(mnist):
    result = perform(make_experiment("local_variance", {"quick": True}))
    ratios, absolute, timing = result.outcome.tables
    assert [row.label for row in ratios.rows] == [kind.label for kind in KINDS[1:]]
    assert ratios.rows[1].paper["top, 1 epochs"] == pytest.approx(4.9e4 / 7.8e3)
    assert all(value > 0 for row in ratios.rows for value in row.measured.values())
    assert [row.label for row in timing.rows] == ["local", "separate samples"] and len(absolute.rows) == 4


def test_the_same_seed_gives_the_same_variances(mnist):
    first, second = (perform(make_experiment("local_variance", {"quick": True}), seed=1).outcome.tables[0] for _ in range(2))
    assert [row.measured for row in first.rows] == [row.measured for row in second.rows]


def test_without_the_data_the_error_names_it(tmp_path, monkeypatch):
    monkeypatch.setenv("CREDO_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CREDO_DATA_URL", raising=False)
    with pytest.raises(DataError, match="mnist"):
        perform(make_experiment("local_variance", {"quick": True}))


def test_the_ordering_needs_every_gap_to_be_significant():
    cells = {("top", 0), ("top", 1), ("bottom", 0), ("bottom", 1)}
    good = {(kind.label, *cell): Estimate(float(place), 0.1) for place, kind in enumerate(KINDS) for cell in cells}
    assert _ordering(good).holds
    assert not _ordering(good | {("single sample", "top", 1): Estimate(1.1, 0.1)}).holds
