"""``credo reproduce``: published tables and figures, measured again and shown beside what the
source says.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from credo.cli.assignments import parse_assignments
from credo.cli.guard import guarded, say
from credo.core.errors import RunError, SettingError

if TYPE_CHECKING:
    from credo_reproduce.outcome import Result


@guarded
def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(help="An experiment; without one, the list of them.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Directory for report.html and results.json; reproduce/NAME if not given."
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    seed: Annotated[int, typer.Option(min=0, help="Seed of every random choice.")] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="Run with small sizes, to check that everything works.")
    ] = False,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A setting of the experiment; repeat the option for more.",
        ),
    ] = None,
) -> None:
    """Measure a published table or figure again, side by side with the source."""
    from credo_reproduce.base import make_experiment, perform
    from credo_reproduce.catalogue import experiments

    if name is None:
        if set_ or out:
            raise SettingError(
                "--set and --out need the name of an experiment: credo reproduce NAME --set "
                "name=value."
            )
        _list()
        return
    from credo.core.settings import describe
    from credo.report import require, write

    settings = parse_assignments(set_ or [], describe(experiments[name]), f"Experiment {name!r}")
    if quick:
        settings["quick"] = True
    experiment = make_experiment(name, settings)
    require()
    folder = out or Path("reproduce") / name
    if folder.is_file():
        raise RunError(f"--out {folder} is a file; expected a directory to write the report into.")
    result = perform(experiment, device, seed, say)
    _print(result)
    typer.echo(f"Report: {write(result.page(), folder / 'report.html')}")


def _list() -> None:
    from credo.cli.printing import print_table
    from credo_reproduce.catalogue import experiments

    rows = [
        [name, kind.title, kind.cost, ", ".join(kind.needs) or "nothing"]
        for name, kind in experiments.items()
    ]
    print_table("Experiments", ["experiment", "what", "cost", "data"], rows)
    typer.echo("credo reproduce NAME runs one; add --quick to check in seconds that it works.")


def _print(result: Result) -> None:
    from credo.cli.printing import print_table
    from credo_reproduce.outcome import verdict

    outcome = result.outcome
    if result.quick:
        typer.echo("QUICK RUN: the numbers mean nothing.\n")
    for table in outcome.tables:
        print_table(
            table.title,
            ["", *table.columns],
            [[row.label, *table.cells(row)] for row in table.rows],
        )
        if table.caption():
            typer.echo(f"{table.caption()}\n")
    rows = [[c.name, verdict(c), c.expected, c.measured] for c in outcome.checks]
    if rows:
        print_table("Checks", ["check", "", "expected", "measured"], rows)
        failed = [c.name for c in outcome.checks if not c.holds]
        typer.echo(
            f"{len(rows) - len(failed)} of {len(rows)} checks hold."
            + (f" Not: {'; '.join(failed)}." if failed else "")
        )
    for note in outcome.notes:
        typer.echo(note)
