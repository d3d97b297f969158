import hashlib

import pytest

from credo.core.errors import DataError
from credo.data.download import SUMS, download, read_sums


@pytest.fixture
def remote(tmp_path):
    folder = tmp_path / "remote"
    folder.mkdir()
    (folder / "a.npz").write_bytes(b"content")
    (folder / SUMS).write_text(f"{hashlib.sha256(b'content').hexdigest()}  a.npz\n")
    return folder


def test_a_listed_file_is_fetched_checked_and_listed(remote, tmp_path):
    path = download("a.npz", remote.as_uri() + "/", tmp_path / "cache")
    assert path is not None and path.read_bytes() == b"content"
    assert read_sums((tmp_path / "cache" / SUMS).read_text()) == read_sums(
        (remote / SUMS).read_text()
    )
    assert download("b.npz", remote.as_uri(), tmp_path / "cache") is None


def test_a_damaged_file_is_refused_and_nothing_is_written(remote, tmp_path):
    (remote / "a.npz").write_bytes(b"altered")
    with pytest.raises(DataError, match="has SHA-256"):
        download("a.npz", remote.as_uri(), tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_no_answer_is_one_sentence(tmp_path):
    with pytest.raises(DataError, match="cannot be fetched"):
        download("a.npz", (tmp_path / "nowhere").as_uri(), tmp_path)
