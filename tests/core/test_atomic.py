"""A file is written whole or not at all."""

from __future__ import annotations

import errno
import os

import pytest

from credo.core.atomic import check_writable, write_atomic
from credo.core.errors import RunError


def test_a_full_disk_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    path = tmp_path / "f"
    path.write_bytes(b"old")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(RunError, match="No space left on device"):
        write_atomic(path, lambda beside: beside.write_bytes(b"new"))
    assert [p.name for p in tmp_path.iterdir()] == ["f"]
    assert path.read_bytes() == b"old"


def test_a_missing_folder_is_one_sentence(tmp_path):
    with pytest.raises(RunError, match="Cannot write"):
        write_atomic(tmp_path / "nowhere" / "f", lambda beside: beside.write_bytes(b"new"))


def test_the_file_has_ordinary_permissions(tmp_path):
    plain, written = tmp_path / "plain", tmp_path / "written"
    plain.write_text("x")
    write_atomic(written, lambda beside: beside.write_text("x"))
    assert written.stat().st_mode == plain.stat().st_mode


def test_an_error_of_the_writer_passes_through(tmp_path):
    with pytest.raises(ZeroDivisionError):
        write_atomic(tmp_path / "f", lambda beside: 1 // 0)
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_is_refused_early(tmp_path, monkeypatch):
    check_writable(tmp_path / "new" / "deep")
    assert not (tmp_path / "new").exists(), "looking makes nothing"
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunError, match="file is a file; choose another place"):
        check_writable(tmp_path / "file" / "run")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(RunError, match="read-only for you"):
        check_writable(tmp_path / "run")
