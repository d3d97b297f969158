"""``credo audit``: how far a run's predictions are from those of the posterior it approximates."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from credo.cli.audit_reference import check, draw, rows_of_fit, sampler_settings
from credo.cli.guard import guarded, say
from credo.cli.run_files import RunFiles
from credo.core.errors import CredoError, RunError, SettingError

if TYPE_CHECKING:
    from torch import Tensor

    from credo.audit import Diagnosis
    from credo.bnn import BNN

_NOT_CONVERGED = (
    "The reference has not converged, so verdicts carry a question mark; raise --warmup and "
    "--draws."
)


@guarded
def audit(
    run: Annotated[
        Path, typer.Argument(help="Run directory written by credo fit.", show_default=False)
    ],
    data: Annotated[
        Path,
        typer.Argument(
            help="The table the run was fitted to: .csv, .tsv or .parquet.", show_default=False
        ),
    ],
    test: Annotated[
        Path | None,
        typer.Option(
            help="Table with the target column to compare predictions at; DATA if not given."
        ),
    ] = None,
    inputs: Annotated[
        int,
        typer.Option(
            min=1, help="Compare predictions at this many rows at most, picked at random."
        ),
    ] = 200,
    rows: Annotated[
        int | None,
        typer.Option(
            min=1, help="Draw the reference from this many random rows of DATA in place of all."
        ),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            help="Sampler of the reference: hmc, nuts, or another that is exact in the limit."
        ),
    ] = "hmc",
    chains: Annotated[int, typer.Option(min=1, help="Number of chains of the reference.")] = 4,
    warmup: Annotated[
        int, typer.Option(min=0, help="Moves that each chain makes before its first draw.")
    ] = 500,
    draws: Annotated[int, typer.Option(min=4, help="Number of draws that each chain gives.")] = 500,
    samples: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of draws from the run's posterior; without it, as many as the reference "
            "has.",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Seed of the reference; the run's plus one if not given."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A setting of the sampler; repeat the option for more.",
        ),
    ] = None,
    reference: Annotated[
        Path | None,
        typer.Option(
            help="Directory to keep the reference in; a reference that is there already is "
            "continued or used again."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Directory for the report; without it RUN-audit, or no report with --json."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON in place of a table.")
    ] = False,
) -> None:
    """Compare a run with exact draws from the posterior of its own model.

    The reference has the run's network, prior and noise, so what differs is the approximation
    alone. It takes its sampler's time: many passes over DATA per draw.
    """
    from credo.audit import compare, converged
    from credo.bnn import load
    from credo.cli.audit_measures import finite, judge
    from credo.data.table import read_table
    from credo.engine.run import Run
    from credo.report import require

    settings = sampler_settings(method, set_ or [], reference is not None)
    folder = _folder(run, out, as_json)
    if folder is not None:
        require()
    files = RunFiles.read(run)
    bnn = load(run, files.build())
    fit = (Run(run).config() or {}).get("fit") or {}
    chosen = fit.get("seed", 0) + 1 if seed is None else seed
    check(bnn, run, method, chosen, fit)
    x, y = _encoded(files, read_table(data))
    places, note = rows_of_fit(x, y, fit, run, data)
    notes = [] if note is None else [note]
    if rows is not None and rows > len(places):
        raise SettingError(
            f"--rows {rows} is more than the {len(places)} rows there are; give fewer, or leave "
            "it out for all."
        )
    total = fit.get("num_data") or len(places)
    if rows is not None and rows < total:
        notes.append(
            f"{run} was fitted to {total} rows, the reference to {rows}; distances are only fair "
            "where both have the same."
        )
    for note in notes:
        say(f"Note: {note}")
    shown = (x, y, places) if test is None else _all(*_encoded(files, read_table(test)))
    moves = {"num_chains": chains, "num_warmup": warmup, "num_draws": draws} | settings
    started = time.perf_counter()
    truth = draw(
        files,
        bnn,
        (x[places], y[places]),
        reference,
        run,
        method=method,
        rows=rows,
        seed=chosen,
        **moves,
    )
    drawn = time.perf_counter()
    at, targets, numbers = _picked(*shown, inputs, chosen)
    found = compare(bnn, truth, at, targets, num_samples=samples, seed=chosen)
    mixed = converged(truth, at)
    drawn_on = {name: truth.history[-1]["reference"][name] for name in ("num_data", "rows", "seed")}
    own = _own_chains(bnn, at)
    summary: dict[str, Any] = {
        "run": str(run),
        "method": bnn.method.name if bnn.method else "the run",
        "table": str(test or data),
        "inputs": len(numbers),
        "notes": notes if mixed.ok else [*notes, _NOT_CONVERGED],
        "reference": {"method": method, "settings": moves, **drawn_on}
        | {
            key: finite(value) if isinstance(value, float) else value
            for key, value in mixed._asdict().items()
        },
        "own_chains": None if own is None else own[0],
        "measures": judge(found, mixed.ok),
        "seconds": {"reference": drawn - started, "comparison": time.perf_counter() - drawn},
    }
    if as_json:
        typer.echo(json.dumps(summary, indent=2))
    else:
        _print(summary)
    if folder is not None:
        path = _write(summary, folder, bnn, truth, at, numbers, files, own)
        typer.echo(f"Report: {path}", err=as_json)


def _folder(run: Path, out: Path | None, as_json: bool) -> Path | None:
    """Where the report goes, if there is one."""
    if out is None and as_json:
        return None
    named = run if run.name not in ("", "..") else run.resolve()
    folder = out or named.with_name(f"{named.name}-audit")
    if folder.is_file():
        raise RunError(
            f"{folder} is a file; expected a directory to write the report into: choose one with "
            "--out."
        )
    return folder


def _encoded(files: RunFiles, frame: Any) -> tuple[Tensor, Tensor]:
    return files.schema.encode(frame), files.schema.encode_target(frame)


def _all(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    import torch

    return x, y, torch.arange(len(y))


def _picked(
    x: Tensor, y: Tensor, places: Tensor, count: int, seed: int
) -> tuple[Tensor, Tensor, list[int]]:
    """Inputs, targets and row numbers, from 1, of up to ``count`` random ones of these places."""
    from credo.audit import subsample

    picked = subsample((x[places], places), min(count, len(places)), seed)[1].sort().values
    return x[picked], y[picked], (picked + 1).tolist()


def _own_chains(bnn: BNN, x: Tensor) -> tuple[str, Diagnosis | None] | None:
    """How well the run's own chains have mixed, where it is made of chains: in words and, unless
    they are too short, in numbers.
    """
    from credo.audit import converged, diagnose

    if bnn.method is None or not bnn.method.is_sampler:
        return None
    try:
        return converged(bnn, x).text, diagnose(bnn, x)
    except CredoError as error:
        return str(error), None


def _print(summary: dict[str, Any]) -> None:
    from credo.cli.audit_measures import CHANCE, EXACT
    from credo.cli.printing import print_table
    from credo.report.html import format_value

    typer.echo(f"Reference: {summary['reference']['text']}")
    if summary["own_chains"]:
        typer.echo(f"The run's own chains: {summary['own_chains']}")
    typer.echo()
    header = ["measure", "value", "±", CHANCE, "verdict"]
    rows = [
        [
            row["label"],
            *(format_value(row[key], 4) for key in ("value", "error", "ceiling")),
            row["verdict"],
        ]
        for row in summary["measures"]
    ]
    print_table(
        f"{summary['run']} ({summary['method']}) against the exact posterior, at "
        f"{summary['inputs']} rows",
        header,
        rows,
    )
    typer.echo(
        f"{CHANCE.capitalize()}: the reference with itself. '{EXACT}': at most two errors (±) "
        "worse than that."
    )
    if not summary["reference"]["ok"]:
        typer.echo(_NOT_CONVERGED)
    seconds = summary["seconds"]
    typer.echo(
        f"Seconds: {seconds['reference']:.1f} for the reference, {seconds['comparison']:.1f} to "
        "compare."
    )


def _write(
    summary: dict[str, Any],
    folder: Path,
    bnn: BNN,
    truth: BNN,
    x: Tensor,
    numbers: list[int],
    files: RunFiles,
    own: tuple[str, Diagnosis | None] | None,
) -> Path:
    from credo.audit import diagnose
    from credo.cli import audit_page
    from credo.report import write

    target, name = files.schema.target, f"{summary['run']} ({summary['method']})"
    parts = [
        audit_page.distances(summary, audit_page.predictions(bnn, truth, x, target, name)),
        audit_page.diagnosis(
            "The reference",
            summary["reference"]["text"],
            diagnose(truth, x),
            audit_page.chains(truth, x, numbers, target),
        ),
    ]
    if own is not None and own[1] is not None:
        parts.append(audit_page.diagnosis("The run's own chains", own[0], own[1], {}))
    return write(audit_page.page(summary, parts), folder / "report.html")
