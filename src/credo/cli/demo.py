"""``credo demo``: six ways to fit one network on two data sets that are always there, as tables and
as a page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from credo.cli.guard import guarded, is_terminal, say
from credo.core.errors import RunError


@guarded
def demo(
    out: Annotated[Path, typer.Option(help="Directory for the report.")] = Path("credo-demo"),
    fast: Annotated[
        bool,
        typer.Option(
            "--fast", help="Train for a tenth of the time, to check that everything works."
        ),
    ] = False,
) -> None:
    """Compare point estimates, variational posteriors and dropout on embedded data, and write a
    report.
    """
    from credo.report import require, write

    require()  # before torch is imported, which takes seconds
    if out.is_file():
        raise RunError(f"--out {out} is a file; expected a directory to write the report into.")
    from credo.cli.demo_tasks import ENTRIES, diabetes, digits

    # Networks this small gain nothing from threads, and lose much where other programs want the
    # cores too.
    with _one_thread(), _reporting(2 * len(ENTRIES)) as report:
        tasks = [digits(fast, report), diabetes(fast, report)]
    for task in tasks:
        _print(task)
    hurried = " Trained for a tenth of the usual time." if fast else ""
    subtitle = f"The same network fitted as a point estimate and with a posterior.{hurried}"
    path = write({"title": "credo demo", "subtitle": subtitle, "tasks": tasks}, out / "report.html")
    typer.echo(f"Report: {path}")


def _print(task: dict[str, Any]) -> None:
    from credo.cli.printing import print_table
    from credo.report.html import format_value

    columns = task["columns"]
    rows = [
        [row["method"], *(format_value(row[c["key"]], c["digits"]) for c in columns)]
        for row in task["rows"]
    ]
    print_table(task["title"], ["method", *(c["label"] for c in columns)], rows)


@contextmanager
def _one_thread() -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _reporting(total: int) -> Iterator[Callable[[str], None]]:
    """A progress bar where someone is watching, plain lines where not."""
    if not is_terminal():
        yield say
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        work = bar.add_task("demo", total=total)
        begun = [0]

        def advance(text: str) -> None:
            bar.update(work, completed=begun[0], description=text)
            begun[0] += 1

        yield advance
