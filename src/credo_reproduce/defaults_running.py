"""Cells of the panel of defaults side by side, each in a process of its own that can be ended; and
the entry without a report, which needs torch, numpy, scipy and scikit-learn alone.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple

from credo.core.atomic import write_json
from credo.core.errors import DataError
from credo.data import load
from credo.methods import methods
from credo_reproduce.audit_table import chosen
from credo_reproduce.base import Say
from credo_reproduce.defaults_cells import Cell, finished, keep
from credo_reproduce.defaults_problems import GENERATIVE, NEEDS, PROBLEMS
from credo_reproduce.defaults_search import RECOMMENDED

LIMIT = 60.0  # seconds of a fit
GRACE = 90.0  # further seconds for data and predictions, before a process is ended
PRELOAD = ["credo_reproduce.defaults_cells"]


class Started(NamedTuple):
    """A process at work on a cell, and when it began."""

    process: Any
    cell: Cell
    since: float


class Plan(NamedTuple):
    """The cells that are wanted, cheap problems first, and problems that are left out, with the
    reason.
    """

    cells: list[Cell]
    left_out: dict[str, str]


def plan(named: Any, problems: Any, seeds: int, search: int) -> Plan:
    """Defaults first, then the trials of the recommended methods on problems whose answer is not
    known.
    """
    names = chosen("methods", named, methods.names())
    left_out: dict[str, str] = {}
    used = chosen("problems", problems, list(PROBLEMS))
    for problem in used:
        if problem in NEEDS:
            try:
                load(NEEDS[problem])
            except DataError as error:
                left_out[problem] = str(error).split(". ")[0]
    used = [p for p in PROBLEMS if p in used and p not in left_out]
    cells = [
        Cell(method, problem, seed)
        for seed in range(seeds)
        for problem in used
        for method in names
        if method in GENERATIVE.get(problem, names)
    ]
    cells += [
        Cell(method, problem, seed, number)
        for number in range(1, search + 1)
        for seed in range(seeds)
        for problem in used
        for method in names
        if method in RECOMMENDED and is_searched(problem)
    ]
    return Plan(cells, left_out)


def is_searched(problem: str) -> bool:
    """Whether its best known nll comes from a search, and not from an exact answer."""
    return not problem.startswith("linear_")


def run_cells(
    todo: Sequence[Cell],
    store: Path,
    processes: int,
    say: Say,
    limit: float = LIMIT,
    seconds: float | None = None,
) -> None:
    """Fit cells until none is left or the seconds are over; what is at work then is given up, and
    left for the next call.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    store.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    left, running, done = list(reversed(todo)), list[Started](), 0
    try:
        while (left or running) and (seconds is None or time.monotonic() - begun < seconds):
            while left and len(running) < processes:
                cell = left.pop()
                process = context.Process(target=keep, args=(store, cell, limit), daemon=True)
                process.start()
                running.append(Started(process, cell, time.monotonic()))
            wait([each.process.sentinel for each in running], timeout=0.2)
            for each in [e for e in running if _is_over(e, store, limit)]:
                running.remove(each)
                done += 1
                say(f"{done}/{len(todo)} {each.cell.problem}, {each.cell.method}")
    finally:
        for each in running:
            each.process.kill()
            each.process.join()


def _is_over(each: Started, store: Path, limit: float) -> bool:
    """Whether its process is; one that takes too long is ended, one that died is written down."""
    process, cell, since = each
    if process.is_alive():
        if time.monotonic() - since < limit + GRACE:
            return False
        process.kill()
        process.join()
        spent = time.monotonic() - since
        write_json(cell.file(store), cell.result("time", seconds=spent, limit=limit))
        return True
    process.join()
    if not cell.file(store).exists():
        why = f"the process ended with code {process.exitcode} (out of memory?)"
        write_json(cell.file(store), cell.result("failed", why=why, limit=limit))
    return True


def main(words: Sequence[str] | None = None) -> None:
    """Fit as many cells as time allows, and say how many are left."""
    parser = argparse.ArgumentParser(
        prog="python -m credo_reproduce.defaults", description=main.__doc__
    )
    parser.add_argument("--out", type=Path, default=Path("reproduce/defaults"))
    parser.add_argument("--methods", default="all")
    parser.add_argument("--problems", default="all")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--search", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds of a fit")
    parser.add_argument("--seconds", type=float, default=None, help="of this call")
    given = parser.parse_args(words)
    store = given.out / "cells"
    wanted, left_out = plan(given.methods, given.problems, given.seeds, given.search)
    for problem, why in left_out.items():
        print(f"{problem} is left out: {why}")
    done, _ = finished(store, given.limit)
    todo = [cell for cell in wanted if cell not in done]
    print(f"{len(wanted)} cells, {len(wanted) - len(todo)} finished before", flush=True)
    say = lambda line: print(line, flush=True)  # noqa: E731
    run_cells(todo, store, given.processes, say, given.limit, given.seconds)
    done, _ = finished(store, given.limit)
    print(f"{sum(cell not in done for cell in wanted)} cells are left")
