"""A run directory: config, history as JSON lines, checkpoint, posterior.

Every file is written beside and renamed into place.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from credo.core.atomic import write_atomic
from credo.core.errors import RunError

FORMAT = 1
CONFIG, HISTORY, CHECKPOINT, POSTERIOR = (
    "config.json",
    "history.jsonl",
    "checkpoint.safetensors",
    "posterior.safetensors",
)
DRAWS = "draws.bin"  # of a sampler at work


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
    for (
        name,
        tensor,
        # the format refuses shared memory; what has its own is not copied: draws may fill the
        # machine
    ) in tensors.items():
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


class Run:
    """One directory. Nothing is created before :meth:`begin`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"{self.path} is a file; a run needs a directory.")
        self._begun = False
        self._attached: dict[str, Any] = {}

    @staticmethod
    def of(run: str | os.PathLike[str] | Run) -> Run:
        """The run of a directory, or one that was made already."""
        return run if isinstance(run, Run) else Run(run)

    def attach(self, name: str, value: Any) -> None:
        """Keep a JSON file of the caller's beside the run's own, from the moment the directory
        exists; one of that name that is there already stays as it is.
        """
        self._attached[name] = value
        if self._begun:
            self._write_attached()

    def _write_attached(self) -> None:
        for name, value in self._attached.items():
            if not (self.path / name).is_file():
                write_json(self.path / name, value)

    def config(self) -> dict[str, Any] | None:
        """The stored config, or None for a new run; one written by a newer credo is refused."""
        if not (self.path / CONFIG).exists():
            if self.path.exists() and any(
                not item.name.startswith(".") for item in self.path.iterdir()
            ):
                raise RunError(
                    f"{self.path} is not empty and holds no run; choose another directory."
                )
            return None
        config = read_json(self.path / CONFIG)
        if not isinstance(config, dict) or not isinstance(config.get("format"), int):
            raise RunError(f"{self.path / CONFIG} is not a run's config.")
        if config["format"] > FORMAT:
            raise RunError(
                f"{self.path} was written by a newer credo (format {config['format']}, this one "
                f"reads {FORMAT}); upgrade credo."
            )
        return config

    def begin(
        self, config: dict[str, Any], present: Callable[[dict[str, Any]], dict[str, Any]] = dict
    ) -> None:
        """Create the directory and store the config, or check that a run to resume has the same
        one; ``present`` puts a stored config into the words of today.
        """
        stored = self.config()
        if stored is not None:
            old = present(stored)
            names = [name for name in config if name != "posterior"]
            before, now = (
                _flat({k: old.get(k) for k in names}),
                _flat(_plain({k: config[k] for k in names})),
            )
            differing = [k for k in before | now if before.get(k) != now.get(k)]
            if differing:
                detail = "; ".join(
                    f"{k}: there {before.get(k)!r}, now {now.get(k)!r}" for k in differing
                )
                raise RunError(
                    f"{self.path} holds another run ({detail}). Choose another directory, or the "
                    "same settings to resume."
                )
        else:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise RunError(f"Cannot create {self.path}: {error.strerror or error}.") from error
            write_json(self.path / CONFIG, config | {"format": FORMAT})
        self._begun = True
        self._write_attached()

    def record(self, row: Mapping[str, Any]) -> None:
        """Append one line of history."""
        try:
            with open(self.path / HISTORY, "a") as file:
                file.write(json.dumps(row) + "\n")
        except OSError as error:
            raise RunError(
                f"Cannot write {self.path / HISTORY}: {error.strerror or error}."
            ) from error

    def history(self, last: int | None = None) -> list[dict[str, Any]]:
        """The history up to epoch ``last``; what a crash left beyond it, or half a line, is dropped
        from the file too.
        """
        path = self.path / HISTORY
        if not path.exists():
            return []
        rows = []
        for line in path.read_text().splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                rows.append(json.loads(line))
        rows = [row for row in rows if last is None or row["epoch"] <= last]
        if last is not None:
            write_atomic(
                path,
                lambda beside: beside.write_text("".join(json.dumps(row) + "\n" for row in rows)),
            )
        return rows

    def checkpoint(self, tensors: Mapping[str, Tensor], epoch: int) -> None:
        """Everything the next epoch needs."""
        write_tensors(self.path / CHECKPOINT, tensors, {"epoch": str(epoch)})

    def draws(self, size: int, dtype: torch.dtype) -> Tensor:
        """``size`` numbers mapped from a file, kept as a killed run left them."""
        try:
            return torch.from_file(str(self.path / DRAWS), shared=True, size=size, dtype=dtype)
        except (OSError, RuntimeError) as error:
            raise RunError(
                f"Cannot map {self.path / DRAWS} for {size} numbers: {str(error).splitlines()[0]}."
            ) from error

    def restore(self) -> tuple[dict[str, Tensor], int] | None:
        """The last checkpoint and its epoch, if there is one."""
        if not (self.path / CHECKPOINT).exists():
            return None
        tensors, meta = read_tensors(self.path / CHECKPOINT)
        return tensors, int(meta["epoch"])

    def finish(self, tensors: Mapping[str, Tensor], config: dict[str, Any]) -> None:
        """Store the result; the config says so last, and what a resumed run would need is gone."""
        write_tensors(self.path / POSTERIOR, tensors)
        write_json(self.path / CONFIG, config | {"format": FORMAT, "complete": True})
        for name in (CHECKPOINT, DRAWS):
            (self.path / name).unlink(missing_ok=True)


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _flat(config: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Nested entries by their path, such as ``fit.lr``."""
    out: dict[str, Any] = {}
    for key, value in config.items():
        out |= (
            _flat(value, f"{path}{key}.")
            if isinstance(value, dict) and value
            else {f"{path}{key}": value}
        )
    return out


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
        raise RunError(f"Cannot write {final}: {error.strerror or error}.") from error
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
        raise RunError(f"Cannot write {final}: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def pack_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """An optimizer's state as named tensors."""
    out = {}
    for index, state in optimizer.state_dict()["state"].items():
        for key, value in state.items():
            out[f"optimizer/{index}/{key}"] = torch.as_tensor(value)
    return out


def unpack_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put a packed state back."""
    whole = optimizer.state_dict()
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        kind, _, rest = name.partition("/")
        if kind == "optimizer":
            index, _, key = rest.partition("/")
            state.setdefault(int(index), {})[key] = tensor
    optimizer.load_state_dict(whole | {"state": state})
