"""``credo methods``: what exists, and what one method takes."""

from __future__ import annotations

import inspect
from typing import Annotated

import typer

from credo.cli.guard import guarded
from credo.cli.method_index import list_methods


@guarded
def methods(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Name of a method, to show its settings and its reference.", show_default=False
        ),
    ] = None,
) -> None:
    """List the methods, or the settings and the reference of one."""
    from credo.cli.printing import print_table

    if name is None:
        rows = [[entry.name, entry.fidelity, entry.summary] for entry in list_methods()]
        print_table("Methods", ["method", "posterior", "what it is"], rows)
        typer.echo("credo methods NAME shows the settings and the reference of one.")
        return
    from credo.core.settings import describe
    from credo.methods import methods as registry

    kind = registry[name]
    typer.echo(f"{name}: {kind.summary}\n")
    about = inspect.getdoc(inspect.getmodule(kind))
    if about:
        typer.echo(f"{about}\n")
    typer.echo(f"Reference: {kind.reference}")
    typer.echo(f"Posterior: {kind.fidelity}")
    epochs = "epochs until the objective has settled, " if kind.takes_epochs else ""
    rate = "by the size of the network" if kind.lr is None else f"{kind.lr:g}"
    typer.echo(f"Defaults: {epochs}--batch-size {kind.batch_size or 'all'} --lr {rate}\n")
    rows = [
        [row["name"], repr(row["default"]), row["range"], row["help"]] for row in describe(kind)
    ]
    print_table("Settings (--set name=value)", ["name", "default", "values", "meaning"], rows)
