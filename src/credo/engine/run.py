"""A run directory: config, history as JSON lines, checkpoint, posterior.

Every file is written beside and renamed into place.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from credo.core.atomic import read_tensors, write_atomic, write_json, write_tensors
from credo.core.errors import RunError
from credo.engine.saved_model import (
    CONFIG,
    FORMAT,
    HISTORY,
    POSTERIOR,
    stored_config,
    stored_history,
)

CHECKPOINT = "checkpoint.safetensors"
DRAWS = "draws.bin"  # of a sampler at work


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
        return stored_config(self.path) if self.path.exists() else None

    def begin(
        self, config: dict[str, Any], present: Callable[[dict[str, Any]], dict[str, Any]] = dict
    ) -> dict[str, Any] | None:
        """Create the directory and store the config, or check that a run to resume has the same
        one, and give what was stored; ``present`` puts that into the words of today.
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
        return stored

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
        rows = [row for row in stored_history(self.path) if last is None or row["epoch"] <= last]
        if last is not None:
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            write_atomic(path, lambda beside: beside.write_text(lines))
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
