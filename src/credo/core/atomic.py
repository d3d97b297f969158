"""Files and directories, written whole or not at all; JSON and tensors, read or refused in one
clear sentence.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from credo.core.errors import RunError

if TYPE_CHECKING:
    from torch import Tensor


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


def write_json(path: Path, value: Any) -> None:
    """JSON, atomically."""
    write_atomic(path, lambda beside: beside.write_text(json.dumps(value, indent=2) + "\n"))


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], meta: Mapping[str, str] | None = None
) -> None:
    """safetensors, atomically."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    plain, places = {}, set()
    # the format refuses shared memory; what has its own is not copied: draws may fill the machine
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        plain[name] = tensor.clone() if tensor.untyped_storage().data_ptr() in places else tensor
        places.add(tensor.untyped_storage().data_ptr())

    def write(beside: Path) -> None:
        try:
            save_file(plain, beside, dict(meta or {}))
        except SafetensorError as error:  # its own error for a full disk
            raise OSError(str(error)) from error

    write_atomic(path, write)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata; a truncated or altered file gives one clear sentence."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            return tensors, dict(file.metadata() or {})
    except FileNotFoundError as error:
        raise RunError(f"{path} does not exist.") from error
    except (SafetensorError, OSError, ValueError) as error:
        raise RunError(
            f"{path} is truncated or damaged ({error}); delete it to start over, or restore it "
            "from a copy."
        ) from error


def read_json(path: Path) -> Any:
    """Parsed JSON; a damaged file gives one clear sentence."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError as error:
        raise RunError(f"{path} does not exist; is {path.parent} a run directory?") from error
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise RunError(f"{path} is truncated or damaged ({error}).") from error


@contextlib.contextmanager
def replace_directory(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Fill a temporary neighbour of a directory, then put it in place whole."""
    final = Path(path)
    if final.exists() and not final.is_dir():
        raise RunError(f"{final} is a file; expected a directory.")
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{final.name}.", dir=final.parent))
    except OSError as error:
        raise _cannot(final, error) from error
    try:
        yield beside
        if final.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{final.name}.", dir=final.parent))
            os.replace(final, old)
            os.replace(beside, final)
            shutil.rmtree(old)
        else:
            os.replace(beside, final)
    except OSError as error:
        raise _cannot(final, error) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
