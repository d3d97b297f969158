"""``credo task distill``: what to do with a posterior."""

from __future__ import annotations

import typer

from credo.cli.task_distill import distill

task = typer.Typer(
    name="task",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in (distill,):
    task.command()(command)


@task.callback()
def root() -> None:
    """What to do with a posterior: distill it into one network."""
