"""What the command line keeps in a run directory beside the posterior: the table's schema and the
network's description.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from credo.core.errors import RunError, SettingError

if TYPE_CHECKING:
    from torch import nn

    from credo.data.table import TableSchema
    from credo.engine.run import Run

TABLE, NETWORK = "table.json", "network.json"


@final
@dataclass(frozen=True)
class RunFiles:
    """The schema and the network description ``{"name", "args"}`` of a run on a table."""

    schema: TableSchema
    network: dict[str, Any]

    def build(self, seed: int = 0) -> nn.Module:
        """The network, initialised from ``seed``; the global random state is left as found."""
        from credo.core.seeds import isolated
        from credo.nets.catalogue import catalogue

        try:
            with isolated(seed):
                return catalogue[self.network["name"]](**self.network["args"])
        except TypeError as error:
            raise RunError(
                f"{NETWORK} describes a network that cannot be built ({error}); fit the run again."
            ) from error

    def attach(self, run: Run) -> None:
        """Keep both beside a run, from the moment its directory exists."""
        run.attach(TABLE, json.loads(self.schema.to_json()))
        run.attach(NETWORK, self.network)

    @staticmethod
    def read(run: Path) -> RunFiles:
        """The files of a run; refuses a directory that ``credo fit`` did not write."""
        from credo.core.atomic import read_json
        from credo.data.table import TableSchema

        missing = [name for name in (TABLE, NETWORK) if not (run / name).is_file()]
        if missing:
            what = "does not exist" if not run.exists() else f"has no {missing[0]}"
            raise RunError(f"{run} {what}; expected a run directory written by credo fit.")
        network = read_json(run / NETWORK)
        if (
            not isinstance(network, dict)
            or not isinstance(network.get("name"), str)
            or not isinstance(network.get("args"), dict)
        ):
            raise RunError(
                f"{run / NETWORK} is not the description of a network; fit the run again."
            )
        schema = TableSchema.from_json((run / TABLE).read_text())
        return RunFiles(schema, network)


def check_directory(out: Path, resume: bool) -> bool:
    """Whether the directory was there; a used one is only continued when that was asked for."""
    from credo.core.atomic import check_writable
    from credo.engine.saved_model import CONFIG

    if out.is_file():
        raise RunError(f"--out {out} is a file; expected a directory to write the run into.")
    check_writable(out)
    if resume and not (out / CONFIG).is_file():
        raise RunError(f"{out} holds no run to resume; leave out --resume to start one there.")
    if not resume and out.is_dir() and any(out.iterdir()):
        raise RunError(
            f"{out} is not empty; pass --resume to continue the run in it, or choose another "
            "directory with --out."
        )
    return out.is_dir()


def discard(run: Path, *, existed: bool) -> None:
    """Remove what a failed fit wrote into a directory that was new or empty, unless there is a
    checkpoint to resume from.
    """
    from credo.engine.run import CHECKPOINT
    from credo.engine.saved_model import POSTERIOR

    if not run.is_dir() or any((run / name).exists() for name in (CHECKPOINT, POSTERIOR)):
        return
    if not existed:
        shutil.rmtree(run)
        return
    for path in run.iterdir():
        path.unlink()


def parse_sizes(text: str, flag: str) -> tuple[int, ...]:
    """``"50,50"`` as ``(50, 50)``; an empty text is no layer at all."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise SettingError(
            f"{flag} {text!r} is not valid; expected whole numbers above 0 with commas between "
            "them, such as 50,50."
        )
    return tuple(map(int, parts))
