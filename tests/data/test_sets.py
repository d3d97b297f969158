import hashlib

import numpy as np
import pytest

from credo.core.errors import DataError
from credo.data import load, names
from credo.data.download import SUMS


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A data folder with one set, and an empty cache."""
    place = tmp_path / "sets"
    place.mkdir()
    np.savez(place / "tiny.npz", x=np.arange(4), image__g=np.ones((1, 2, 2), dtype=np.uint8))
    (place / SUMS).write_text(
        f"{hashlib.sha256((place / 'tiny.npz').read_bytes()).hexdigest()}  tiny.npz\n"
    )
    monkeypatch.setenv("CREDO_DATA", str(place))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CREDO_DATA_URL", raising=False)
    return place


def test_a_set_in_the_folder_is_decoded(folder):
    arrays = load("tiny")
    assert arrays["x"].tolist() == [0, 1, 2, 3]
    assert arrays["image"].tolist() == [[[1, 2], [2, 4]]]
    assert "tiny" in names()


def test_packaged_sets_are_always_there(folder):
    digits = load("digits")
    assert digits["x"].shape == (1797, 64)
    assert (digits["x"].min(), digits["x"].max()) == (0, 16)


def test_the_cache_is_next_and_a_download_fills_it(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("CREDO_DATA", str(tmp_path / "none"))
    monkeypatch.setenv("CREDO_DATA_URL", folder.as_uri())
    assert load("tiny")["x"].tolist() == [0, 1, 2, 3]
    monkeypatch.delenv("CREDO_DATA_URL")
    assert load("tiny")["x"].tolist() == [0, 1, 2, 3]
    assert (tmp_path / "cache" / "credo" / "tiny.npz").is_file()


def test_not_found_says_where_it_looked_and_what_is_near(folder):
    with pytest.raises(
        DataError,
        match=f"No data set 'tinny' in {folder}.*credo, scikit-learn.*CREDO_DATA_URL.*Did you "
        "mean 'tiny'",
    ):
        load("tinny")
    with pytest.raises(DataError, match="not the name of a data set"):
        load("../tiny")


def test_an_altered_or_unlisted_file_is_refused(folder):
    np.savez(folder / "other.npz", x=np.zeros(1))
    with pytest.raises(DataError, match="has no line in"):
        load("other")
    np.savez(folder / "tiny.npz", x=np.zeros(1))
    with pytest.raises(DataError, match="damaged or altered"):
        load("tiny")


def test_a_listed_file_that_is_no_npz(folder):
    (folder / "tiny.npz").write_bytes(b"PK nothing")
    (folder / SUMS).write_text(f"{hashlib.sha256(b'PK nothing').hexdigest()}  tiny.npz\n")
    with pytest.raises(DataError, match="not a readable npz"):
        load("tiny")
