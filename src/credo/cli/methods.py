"""``credo methods``: what exists, what one method takes, and what a fit by it would do."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from credo.cli.fit_options import Hidden, Task
from credo.cli.guard import guarded
from credo.cli.method_index import list_methods
from credo.core.errors import SettingError

if TYPE_CHECKING:
    from credo.engine.method import Method


@guarded
def methods(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Name of a method, to show its settings and its reference.", show_default=False
        ),
    ] = None,
    table: Annotated[
        Path | None,
        typer.Option(
            "--for",
            metavar="DATA",
            help="Table to learn from, to show what credo fit would do with it: how many steps, in "
            "which time and memory.",
        ),
    ] = None,
    target: Annotated[str | None, typer.Option(help="Column of --for to predict.")] = None,
    task: Task = None,
    hidden: Hidden = "50,50",
) -> None:
    """List the methods, or the settings and the reference of one, and what a fit would do."""
    if table is None and target is not None:
        raise SettingError(f"--target {target} is a column of a table; name that with --for.")
    if table is not None and (name is None or target is None):
        missing = "the name of a method" if name is None else "--target COLUMN"
        raise SettingError(
            f"--for {table} needs {missing} too, as in: credo methods vi --for {table} --target y"
        )
    if name is None:
        _print_list()
        return
    _print_method(name)
    if table is not None and target is not None:
        _print_plan(name, table, target, task, hidden)


def _print_list() -> None:
    from credo.cli.printing import print_table

    rows = [[entry.name, entry.fidelity, entry.summary] for entry in list_methods()]
    print_table("Methods", ["method", "posterior", "what it is"], rows)
    typer.echo("credo methods NAME shows the settings and the reference of one.")


def _print_method(name: str) -> None:
    from credo.cli.printing import print_table
    from credo.core.settings import describe
    from credo.methods import methods as registry

    kind = registry[name]
    typer.echo(f"{name}: {kind.summary}\n")
    about = inspect.getdoc(inspect.getmodule(kind))
    if about:
        typer.echo(f"{about}\n")
    typer.echo(f"Reference: {kind.reference}")
    typer.echo(f"Posterior: {kind.fidelity}")
    typer.echo(f"Defaults: {_defaults(kind)}")
    typer.echo(f"credo methods {name} --for DATA.csv --target COLUMN shows them for a table.\n")
    rows = [
        [row["name"], repr(row["default"]), row["range"], row["help"]] for row in describe(kind)
    ]
    print_table("Settings (--set name=value)", ["name", "default", "values", "meaning"], rows)


def _defaults(kind: type[Method]) -> str:
    """Length, batch size and learning rate; where they depend on the problem, in words."""
    from credo.engine.fit_job import CHEAP, STEPS, Problem
    from credo.engine.method import Method

    usual, typical = kind(), Problem(num_data=1_000_000, num_weights=1)
    most = usual.usual_steps(typical, typical.num_data)
    if not kind.takes_epochs:
        length = "as many moves as its settings say"
    elif most == 1:
        return "one pass over the data, without steps"
    elif not kind.fixed_length:
        length = f"epochs until the objective has settled, {STEPS:,} steps at most on few data"
    else:
        length = f"epochs for {most:,} steps, on few data"
    size = str(kind.batch_size or "all")
    if kind.usual_batch_size is not Method.usual_batch_size:
        size = (
            f"all where there are at most {CHEAP:,} products of examples and weights, else {size}"
        )
    rate = "by the size of the network" if kind.lr is None else f"{kind.lr:g}"
    return f"{length}; --batch-size {size}; --lr {rate}"


def _print_plan(name: str, table: Path, target: str, task: str | None, hidden: str) -> None:
    """What credo fit would do with this table."""
    from credo.bnn import BNN
    from credo.cli.fit import described
    from credo.cli.run_files import parse_sizes
    from credo.data.table import read_table

    sizes = parse_sizes(hidden, "--hidden")
    frame = read_table(table)
    files = described(frame, target, task, sizes)
    pair = files.schema.encode(frame), files.schema.encode_target(frame)
    plan = BNN(files.build(), files.schema.target.likelihood).plan(pair, name)
    typer.echo(f"For {table}:\n{plan}")
