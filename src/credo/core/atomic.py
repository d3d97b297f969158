"""Write a file whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path

from credo.core.errors import RunError


def write_atomic(path: Path, write: Callable[[Path], object]) -> None:
    """Have ``write`` fill a temporary neighbour, flush it to disk, then rename: readers see the old
    file or the new one.
    """
    beside = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        write(beside)
        with open(beside, "rb") as file:
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError as error:
        raise _cannot(path, error) from error
    finally:
        beside.unlink(missing_ok=True)


def check_writable(directory: Path) -> None:
    """Refuse a directory that cannot be made or written into, before there is anything to lose."""
    there = next(parent for parent in (directory, *directory.absolute().parents) if parent.exists())
    if not there.is_dir():
        raise RunError(f"Cannot write {directory}: {there} is a file; choose another place.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise RunError(
            f"Cannot write {directory}: {there} is read-only for you; choose another place."
        )


def _cannot(path: Path, error: OSError) -> RunError:
    return RunError(
        f"Cannot write {path}: {error.strerror or error}. Nothing was changed; free space or "
        "choose another place."
    )
