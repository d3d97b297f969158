"""``credo evaluate``: metrics of a run on a table with known targets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from credo.cli.guard import guarded
from credo.cli.run_files import RunFiles


@guarded
def evaluate(
    run: Annotated[
        Path, typer.Argument(help="Run directory written by credo fit.", show_default=False)
    ],
    data: Annotated[
        Path,
        typer.Argument(
            help="Table with the target column: .csv, .tsv or .parquet.", show_default=False
        ),
    ],
    samples: Annotated[int, typer.Option(min=1, help="Number of draws from the posterior.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draws.")] = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON in place of a table.")
    ] = False,
) -> None:
    """Compare predictions with known targets, in the units of the training table."""
    from credo.bnn import load
    from credo.cli.printing import print_table
    from credo.data.table import read_table

    files = RunFiles.read(run)
    frame = read_table(data)
    pair = files.schema.encode(frame), files.schema.encode_target(frame)
    bnn = load(run, files.build())
    metrics = files.schema.target.metrics(bnn.evaluate(pair, num_samples=samples, seed=seed))
    if as_json:
        typer.echo(json.dumps(metrics, indent=2))
    else:
        print_table(
            f"{run} on {data} ({len(frame)} rows)",
            ["metric", "value"],
            [[k, f"{v:.4g}"] for k, v in metrics.items()],
        )
