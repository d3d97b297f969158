"""A progress bar on standard error, or nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from credo.engine.fit_job import FitJob


class Advance(Protocol):
    """``advance(count, text)``: so many steps are done, and how it stands."""

    def __call__(self, count: int, text: str | None = None) -> None:
        """Move the bar."""
        ...


@contextmanager
def progress(fit_job: FitJob, total: int) -> Iterator[Advance]:
    """A bar of ``total`` steps on the terminal, where there is one and the user wants it."""
    if not (fit_job.progress and sys.stderr.isatty()):
        yield lambda count, text=None: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("fit", total=total)

        def advance(count: int, text: str | None = None) -> None:
            bar.update(task, advance=count, description=text)  # None leaves it as it is

        yield advance
