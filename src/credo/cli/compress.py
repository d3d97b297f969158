"""``credo compress``: a fitted run as a file that is hundreds of times smaller."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from credo.cli.guard import guarded
from credo.cli.run_files import RunFiles


@guarded
def compress(
    run: Annotated[
        Path, typer.Argument(help="Run directory written by credo fit.", show_default=False)
    ],
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("model.credo"),
    by: Annotated[
        str,
        typer.Option(
            help="Pruning rule: own, snr, magnitude, or auto (own where the posterior has one)."
        ),
    ] = "auto",
    threshold: Annotated[
        float | None,
        typer.Option(
            help="Threshold of the pruning rule; the rule own has one of its own.",
            show_default=False,
        ),
    ] = None,
    share: Annotated[
        float | None,
        typer.Option(
            help="Share of the weights to prune, in place of a threshold.", show_default=False
        ),
    ] = None,
    step: Annotated[
        float,
        typer.Option(
            help="Largest rounding error of a weight, in posterior deviations of its layer."
        ),
    ] = 1.0,
    levels: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of different values in each layer, in place of rounding to a grid.",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Table with targets, on which the loss is measured after each step.",
            show_default=False,
        ),
    ] = None,
    tune: Annotated[
        int,
        typer.Option(
            min=0,
            help="Epochs in which the weights that are left, and then the values they share, are "
            "trained on --train.",
        ),
    ] = 0,
    train: Annotated[
        Path | None, typer.Option(help="Table to retrain on.", show_default=False)
    ] = None,
) -> None:
    """Prune, quantise and entropy-code the mean network of a run, and show what it costs.

    The file holds the sparsity pattern, shared values, biases and a checksum; the run's network
    description reads it back: credo.compress.decode(FILE, net).
    """
    import torch

    from credo import compress as cc
    from credo.bnn import load
    from credo.cli.printing import print_table
    from credo.core.errors import SettingError

    if tune and train is None:
        raise SettingError("--tune needs --train, the table to retrain on.")
    files = RunFiles.read(run)
    bnn = load(run, files.build())
    rows: list[list[str]] = []

    def note(what: str, net: Any, nonzero: int) -> None:
        metrics = cc.score(net, bnn, _pair(files, data)) if data is not None else {}
        shown = files.schema.target.metrics(metrics) if metrics else {}
        rows.append([what, f"{nonzero:,}", *(f"{shown[key]:.4g}" for key in list(shown)[:2])])
        names[:] = list(shown)[:2]

    names: list[str] = []
    dense = cc.pruned_of(cc.plain(bnn))
    note("mean network", dense.net, dense.nonzero)
    nothing = by == "auto" and threshold is None and share is None
    pruned = cc.pruned_of(bnn) if nothing else cc.prune(bnn, by, threshold, share)
    note("pruned", pruned.net, pruned.nonzero)
    if tune and train is not None:
        pruned = cc.fine_tune(pruned, bnn, _pair(files, train), tune, progress=True)
        note("retrained", pruned.net, pruned.nonzero)
    pruned = cc.tidy(pruned, torch.zeros(2, files.schema.num_features))
    codes = cc.quantise(pruned, step, levels)
    if tune and train is not None:
        codes = cc.tune_books(codes, pruned.net, bnn, _pair(files, train), tune, progress=True)
    told = cc.encode(codes, out, net=pruned.net)
    note("decoded file", cc.decode(out, files.build()), codes.nonzero)
    print_table(f"{run} -> {out}", ["step", "numbers left", *names], rows)
    parts = [
        [
            name,
            f"{cost.numel:,}",
            f"{cost.nonzero:,}",
            f"{cost.positions / 8:.0f}",
            f"{cost.values / 8:.0f}",
            f"{(cost.book + cost.raw) / 8:.0f}",
        ]
        for name, cost in told.tensors.items()
    ]
    print_table(
        "What the bytes are", ["tensor", "numbers", "left", "positions", "values", "book"], parts
    )
    typer.echo(
        f"{out}: {told.bytes:,} bytes, {told.ratio:.0f} times smaller than float32 "
        f"({told.float32_bytes:,} bytes)."
    )


def _pair(files: RunFiles, table: Path) -> Any:
    from credo.data.table import read_table

    frame = read_table(table)
    return files.schema.encode(frame), files.schema.encode_target(frame)
