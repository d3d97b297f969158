"""Regression on nine UCI sets with one hidden layer: log-likelihood and error of every method on
the published splits.

Hernandez-Lobato and Adams's splits as Gal and Ghahramani share them: 20 of 90 % and 10 % (protein
5), a hidden layer of 50 units (protein 100). Every choice is made on a validation part of the
training split; the test part is judged once. Cells that are finished lie in ``store``, one file
each: a run that was stopped goes on where it was, and the table is made of all of them.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from credo.core.errors import SettingError
from credo.core.settings import setting
from credo.methods import methods
from credo_reproduce.audit_table import chosen
from credo_reproduce.base import Experiment, Say, experiments
from credo_reproduce.outcome import Outcome
from credo_reproduce.uci_cells import SETS, Cell, Terms, finished, keep, reason, split
from credo_reproduce.uci_recipes import NOT_APPLICABLE, applicable
from credo_reproduce.uci_table import checks, figure, summary, tables

MAIN = (
    "map",
    "deep_ensemble",
    "mc_dropout",
    "concrete_dropout",
    "vi",
    "last_layer",
    "swag",
    "laplace",
    "sghmc",
    "hmc",
)


@experiments.register("uci")
@dataclass(frozen=True)
class UCI(Experiment):
    """All cells, in any number of runs."""

    name: ClassVar[str] = "uci"
    title: ClassVar[str] = "UCI regression: test log-likelihood with one hidden layer"
    reference: ClassVar[str] = (
        "Hernandez-Lobato and Adams 2015; Gal and Ghahramani 2016; Lakshminarayanan et al. 2017; "
        "Mukhoti et al. 2018; Wu et al. 2019."
    )
    cost: ClassVar[str] = (
        "days on one CPU core; hours with jobs=16 and a GPU for hmc on the large sets"
    )
    needs: ClassVar[tuple[str, ...]] = tuple(source.file for source in SETS.values())
    quick_settings: ClassVar[dict[str, Any]] = {
        "sets": "yacht",
        "splits": "0",
        "methods": "map,hmc",
        "effort": 0.02,
        "store": "reproduce/uci/quick",
    }

    sets: str = setting("all", "Which data sets: names with commas between them, or all.")
    methods: str = setting(
        "main", "Which methods: names with commas, all, or main for the best-known ones."
    )
    splits: str = setting(
        "all", "Which splits: numbers from 0 with commas, ranges such as 0-4, or all."
    )
    limit: Any = setting(
        None, "Measure at most this many cells that are not finished yet.", kind=int, ge=0
    )
    jobs: int = setting(
        1,
        "Processes that measure cells side by side, one thread each; on a GPU they share it.",
        ge=1,
    )
    store: str = setting("reproduce/uci/cells", "Directory of finished cells.")
    effort: float = setting(1.0, "Share of every recipe's steps, warm-up and draws.", gt=0.0)

    def run(self, device: torch.device, seed: int, say: Say) -> Outcome:
        """Measure what is missing, then show everything there is."""
        terms, store = Terms(seed, self.effort), Path(self.store)
        wanted, left_out = self.cells()
        done, _ = finished(store, terms)
        missing = [cell for cell in wanted if cell not in done]
        todo = missing if self.limit is None else missing[: self.limit]
        for name in dict.fromkeys(cell.set for cell in todo):
            split(name, 0)  # a set that is not there is found out now, not in the middle
        say(
            f"{len(wanted)} cells, {len(wanted) - len(missing)} finished before, {len(todo)} to "
            "measure"
        )
        store.mkdir(parents=True, exist_ok=True)
        failures = self._measure(todo, terms, str(device), say)
        for cell, why in failures.items():
            say(f"failed: {cell.set}, split {cell.split}, {cell.method}: {why}")
        done, others = finished(store, terms)
        notes = [f"{name} is left out: {NOT_APPLICABLE[name]}." for name in left_out]
        if others:
            notes.append(
                f"{others} files in {store} were measured under other settings and are not in the "
                "tables."
            )
        return Outcome([summary(done), *tables(done, failures)], figure(done), checks(done), notes)

    def cells(self) -> tuple[list[Cell], list[str]]:
        """The chosen cells, cheap sets first, and the methods among the chosen that do not
        apply.
        """
        known = [name for name in MAIN if name in methods] if self.methods == "main" else None
        named = known or chosen("methods", self.methods, methods.names())
        left_out = [name for name in named if name in NOT_APPLICABLE]
        used = [name for name in named if name in applicable()]
        sets = [name for name in SETS if name in chosen("sets", self.sets, list(SETS))]
        cells = [
            Cell(s, number, m)
            for s in sets
            for number in self._splits(SETS[s].splits)
            for m in used
        ]
        return cells, left_out

    def _splits(self, count: int) -> list[int]:
        """Those of the chosen splits that a set has."""
        if self.splits == "all":
            return list(range(count))
        numbers: set[int] = set()
        for text in self.splits.split(","):
            first, _, last = text.strip().partition("-")
            if (
                not first.isdecimal()
                or not (last or first).isdecimal()
                or int(last or first) < int(first)
            ):
                raise SettingError(
                    f"splits={self.splits!r}; expected numbers from 0 with commas, ranges such as "
                    "0-4, or all."
                )
            numbers |= set(range(int(first), int(last or first) + 1))
        return sorted(number for number in numbers if number < count)

    def _measure(
        self, todo: Sequence[Cell], terms: Terms, device: str, say: Say
    ) -> dict[Cell, str]:
        """Measure cells one after another or side by side; those that fail, with the reason."""
        failures: dict[Cell, str] = {}
        place = len(str(len(todo)))
        rows = (
            self._alone(todo, terms, device)
            if self.jobs == 1
            else self._together(todo, terms, device)
        )
        for number, (cell, result) in enumerate(rows, 1):
            head = f"{number:>{place}}/{len(todo)} {cell.set}, split {cell.split}, {cell.method}"
            if isinstance(result, str):
                failures[cell] = result
                say(f"{head}: failed")
            else:
                say(
                    f"{head}: ll {result['ll']:.3f}, rmse {result['rmse']:.4g}, "
                    f"{result['candidate']}, {result['seconds']:.0f} s"
                )
        return failures

    def _alone(
        self, todo: Sequence[Cell], terms: Terms, device: str
    ) -> Iterator[tuple[Cell, dict[str, Any] | str]]:
        for cell in todo:
            try:
                yield cell, keep(Path(self.store), cell, terms, device)
            except Exception as error:  # whatever a fit may raise concerns this cell alone
                yield cell, reason(error)

    def _together(
        self, todo: Sequence[Cell], terms: Terms, device: str
    ) -> Iterator[tuple[Cell, dict[str, Any] | str]]:
        """Fresh processes, because a forked one cannot use a GPU; one that dies ends the run for
        the cells that are left.
        """
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(
            min(self.jobs, max(1, len(todo))), context, torch.set_num_threads, (1,)
        ) as pool:
            futures: dict[Future[dict[str, Any]], Cell] = {
                pool.submit(keep, Path(self.store), cell, terms, device): cell for cell in todo
            }
            try:
                for future in as_completed(futures):
                    error = future.exception()
                    if isinstance(error, BrokenProcessPool):
                        yield (
                            futures[future],
                            "a process died before this cell was finished (out of memory?); run "
                            "again to go on",
                        )
                    else:
                        yield futures[future], future.result() if error is None else reason(error)
            finally:
                pool.shutdown(cancel_futures=True)
