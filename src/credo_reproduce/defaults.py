"""Every method with no setting changed, on problems of many kinds: where it is near its target, and
what ``diagnose`` says where it is not.

A cell that is far from its target and has no finding is silent, and silent cells are what the panel
is to find. Each is fitted in a process of its own, for a minute at most; finished ones lie in
``store``, one file each, so that a run that was stopped goes on where it was. ``python -m
credo_reproduce.defaults --out FOLDER --seconds 540`` fills the store without making a report.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from credo.core.errors import SettingError
from credo.core.settings import setting
from credo_reproduce.base import Experiment, Say, experiments
from credo_reproduce.defaults_cells import finished
from credo_reproduce.defaults_running import LIMIT, main, plan, run_cells
from credo_reproduce.defaults_table import (
    earlier_search,
    panel_checks,
    silent,
    summary,
    tables,
    unfitted,
    verdicts,
)
from credo_reproduce.outcome import Outcome


@experiments.register("defaults")
@dataclass(frozen=True)
class Defaults(Experiment):
    """All cells, in any number of runs."""

    name: ClassVar[str] = "defaults"
    title: ClassVar[str] = "Every method with no setting changed"
    reference: ClassVar[str] = (
        "A panel of our own; exact answers by conjugacy, and Tipping and Bishop 1999."
    )
    cost: ClassVar[str] = "hours on two CPU cores, and more with a search"
    needs: ClassVar[tuple[str, ...]] = ("uci_yacht", "uci_energy", "mnist")
    quick_settings: ClassVar[dict[str, Any]] = {
        "methods": "map,vi,laplace",
        "problems": "linear_20,wine",
        "store": "reproduce/defaults/quick",
        "limit": 15.0,
    }

    methods: Any = setting(
        "all", "Which methods: names with commas between them, or all.", kind=(str, tuple, list)
    )
    problems: Any = setting("all", "Which problems, likewise.", kind=(str, tuple, list))
    seeds: int = setting(1, "How many data sets, or splits, of every problem.", ge=1)
    processes: int = setting(2, "Processes side by side, one thread each.", ge=1)
    search: int = setting(
        0,
        "Trials with random settings of every recommended method, to know what is possible.",
        ge=0,
    )
    limit: float = setting(LIMIT, "Seconds that a fit may take.", gt=0.0)
    seconds: Any = setting(
        None,
        "Seconds after which no more cells are fitted; 0 shows what there is.",
        kind=float,
        ge=0,
    )
    searched: Any = setting(
        None, "Result file of an earlier run whose search counts where there is none.", kind=str
    )
    store: str = setting("reproduce/defaults/cells", "Directory of finished cells.")

    def run(self, device: torch.device, seed: int, say: Say) -> Outcome:
        """Fit what is missing, then show everything there is."""
        if device.type != "cpu":
            raise SettingError(
                f"device={device}: the panel fits on a CPU, one thread each; use cpu."
            )
        store = Path(self.store)
        wanted, left_out = plan(self.methods, self.problems, self.seeds, self.search)
        done, _ = finished(store, self.limit)
        todo = [cell for cell in wanted if cell not in done]
        say(f"{len(wanted)} cells, {len(wanted) - len(todo)} finished before")
        run_cells(todo, store, self.processes, say, self.limit, self.seconds)
        found, others = finished(store, self.limit)
        if self.searched is not None:
            found = earlier_search(Path(self.searched)) | found
        judged = verdicts(wanted, found)
        notes = [f"{problem} is left out: {why}." for problem, why in left_out.items()]
        if others:
            notes.append(f"{others} files in {store} are of other defaults, and not in the tables.")
        shown = [summary(judged, found), silent(judged, found), *tables(judged, found)]
        shown.append(unfitted(judged, found))
        return Outcome(
            [table for table in shown if table.rows], (), panel_checks(judged, found), notes
        )


if __name__ == "__main__":
    main()
