"""The commands, one file each, under one name."""

from __future__ import annotations

from importlib.metadata import entry_points, version
from typing import Annotated

import typer

from credo.cli.audit import audit
from credo.cli.compress import compress
from credo.cli.demo import demo
from credo.cli.evaluate_run import evaluate
from credo.cli.fit import fit
from credo.cli.methods import methods
from credo.cli.predict import predict
from credo.cli.task import task
from credo.cli.vae_app import vae

app = typer.Typer(
    name="credo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in (demo, fit, predict, evaluate, audit, compress, methods):
    app.command()(command)
for entry in entry_points(
    group="credo.commands"
):  # of packages beside credo, such as credo_reproduce
    app.command(entry.name)(entry.load())
app.add_typer(task)
app.add_typer(vae)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"credo {version('credo-bayes')}")
        raise typer.Exit


@app.callback()
def root(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print the version and stop."
        ),
    ] = False,
) -> None:
    """Bayesian deep learning: fit a posterior to any network, and predict with uncertainty."""


def main() -> None:
    """The entry point of the ``credo`` command."""
    app()
