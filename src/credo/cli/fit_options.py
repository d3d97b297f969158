"""Options of every command that fits a network to the rows of a table."""

from __future__ import annotations

from typing import Annotated

import typer

Resume = Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")]
Task = Annotated[
    str | None, typer.Option(help="classification or regression; read off the target if not given.")
]
Hidden = Annotated[
    str,
    typer.Option(
        help="Sizes of the hidden layers, with commas between them; an empty text gives a linear "
        "model."
    ),
]
Epochs = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Passes over the data; without it a descent ends when its objective has settled.",
    ),
]
BatchSize = Annotated[
    int | None, typer.Option(min=1, help="Rows per step; the method's default if not given.")
]
LearningRate = Annotated[
    float | None, typer.Option(help="Learning rate; the method's default if not given.")
]
MaxSeconds = Annotated[
    float | None, typer.Option(help="Most seconds to train for; no limit if not given.")
]
Strict = Annotated[
    bool, typer.Option("--strict", help="Take findings about the fit for errors: exit code 2.")
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of every random choice.")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="A setting of the method (credo methods NAME lists them); repeat the option for more.",
    ),
]
