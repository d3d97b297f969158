"""``credo vae fit | sample | report``: learn to generate images."""

from __future__ import annotations

import typer

from credo.cli.vae_fit import fit
from credo.cli.vae_show import report, sample

vae = typer.Typer(
    name="vae",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in (fit, sample, report):
    vae.command()(command)


@vae.callback()
def root() -> None:
    """Learn to generate images: a variational autoencoder encodes each image in a few numbers and
    decodes them again.

    Start with: credo vae fit digits --out run, then credo vae report run and credo vae sample run.
    """
