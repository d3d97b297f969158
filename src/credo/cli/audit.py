"""``credo audit``: how far a run's predictions are from those of the posterior it approximates."""

from __future__ import annotations

import json
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from credo.cli.assignments import parse_assignments
from credo.cli.guard import guarded, is_terminal, say
from credo.cli.run_files import RunFiles, discard
from credo.core.errors import CredoError, RunError, SettingError, nearest

if TYPE_CHECKING:
    from torch import Tensor

    from credo.bnn import BNN

_HELD = "audit.json"  # beside a reference that is kept: what its model was held at
_OPTIONS = {"num_chains": "--chains", "num_warmup": "--warmup", "num_draws": "--draws"}


@guarded
def audit(
    run: Annotated[Path, typer.Argument(help="Run directory written by credo fit.", show_default=False)],
    data: Annotated[Path, typer.Argument(help="The table the run was fitted to: .csv, .tsv or .parquet.", show_default=False)],
    test: Annotated[
        Path | None, typer.Option(help="Table with the target column to compare predictions at; DATA if not given.")
    ] = None,
    inputs: Annotated[int, typer.Option(min=1, help="Rows to compare predictions at, at most; picked at random.")] = 200,
    rows: Annotated[int | None, typer.Option(min=1, help="Draw the reference on so many random rows of DATA only.")] = None,
    method: Annotated[
        str, typer.Option(help="Sampler of the reference: hmc, nuts, or another that is exact in the limit.")
    ] = "hmc",
    chains: Annotated[int, typer.Option(min=1, help="Chains of the reference.")] = 4,
    warmup: Annotated[int, typer.Option(min=1, help="Moves of every chain before its first draw.")] = 500,
    draws: Annotated[int, typer.Option(min=4, help="Draws of every chain.")] = 500,
    samples: Annotated[
        int | None, typer.Option(min=1, help="Draws of the run's posterior; as many as the reference has if not given.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the reference; the run's plus one if not given.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting of the sampler; repeat for more.")
    ] = None,
    reference: Annotated[
        Path | None,
        typer.Option(help="Directory to keep the reference in, as a run; one that is there is continued or used again."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Directory for the report; RUN-audit if not given, and with --json none.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON in place of a table.")] = False,
) -> None:
    """Compare a run with exact draws from the posterior of its own model.

    The reference has the run's network, prior and noise, so what differs is the approximation alone. It takes as long as its sampler:
    hundreds of passes over DATA per draw.
    """
    import credo
    from credo import audit as audits
    from credo.cli import audit_page
    from credo.data.table import read_table
    from credo.report import require, write

    settings = _settings(method, set_ or [], reference)
    folder = _folder(run, out, as_json)
    if folder is not None:
        require()
    files = RunFiles.read(run)
    bnn = credo.load(run, files.build())
    fit = _fit_of(run)
    seed = fit.get("seed", 0) + 1 if seed is None else seed
    _check(bnn, run, method, seed, fit)
    frame = read_table(data)
    pair, notes = _rows_of_fit(files.schema.encode(frame), files.schema.encode_target(frame), fit, run, data)
    if rows is not None and rows < fit.get("num_data", len(pair[1])):
        notes.append(
            f"{run} was fitted to {fit.get('num_data', len(pair[1]))} rows, the reference to {rows}; distances are only fair where "
            "both have the same."
        )
    for note in notes:
        say(f"Note: {note}")
    x, y, numbers = _inputs(files, pair if test is None else read_table(test), inputs, seed)
    moves: dict[str, Any] = {"num_chains": chains, "num_warmup": warmup, "num_draws": draws}
    say(
        f"Drawing the reference: {method}, {chains} chain{'s' * (chains != 1)} of {warmup} + {draws} moves on {rows or len(pair[1])} rows."
    )
    started = time.perf_counter()
    truth = _reference(files, bnn, pair, reference, run, method=method, rows=rows, seed=seed, **moves, **settings)
    drawn = time.perf_counter()
    found = audits.compare(bnn, truth, x, y, samples=samples)
    record = truth.history[-1]["reference"]
    told = _own(bnn, x)
    if not record["ok"]:
        notes.append("The reference has not converged, so verdicts carry a question mark; raise --warmup and --draws.")
    summary = {
        "run": str(run),
        "method": bnn.method.name if bnn.method else "the run",
        "table": str(test or data),
        "inputs": len(y),
        "notes": notes,
        "reference": {"method": method, "settings": moves | settings}
        | {key: audit_page.finite(value) if isinstance(value, float) else value for key, value in record.items()},
        "own_chains": told[0] if told else None,
        "measures": audit_page.judge(found, record["ok"]),
        "seconds": {"reference": drawn - started, "comparison": time.perf_counter() - drawn},
    }
    if as_json:
        typer.echo(json.dumps(summary, indent=2))
    else:
        _print(summary)
    if folder is not None:
        target, name = files.schema.target, f"{run} ({summary['method']})"
        parts = [
            audit_page.distances(summary, audit_page.predictions(bnn, truth, x, target, name, seed)),
            audit_page.diagnosis(
                "The reference", record["text"], audits.diagnose(truth, x), audit_page.chains(truth, x, numbers, target)
            ),
        ]
        if told:
            parts.append(audit_page.diagnosis("The run's own chains", told[0], told[1], {}))
        path = write(audit_page.page(summary, parts), folder / "report.html")
        typer.echo(f"Report: {path}", err=as_json)


def _settings(method: str, pairs: list[str], reference: Path | None) -> dict[str, Any]:
    """Settings of a sampler that can be a reference, checked."""
    from credo.core.settings import describe
    from credo.engine.sampling import Sampler
    from credo.methods import make_method, methods

    fit = {n: kind for n, kind in methods.items() if kind.fidelity != "approximate" and issubclass(kind, Sampler)}
    if method not in fit:
        raise SettingError(f"--method {method!r} is no sampler that is exact in the limit.{nearest(method, fit)}")
    settings = parse_assignments(pairs, describe(fit[method]), f"Method {method!r}")
    for name, option in _OPTIONS.items():
        if name in settings:
            raise SettingError(f"--set {name}={settings[name]} has an option of its own; give {option} {settings[name]}.")
    make_method(method, settings)
    if settings.get("store") == "disk" and reference is None:
        raise SettingError("--set store=disk keeps the draws in the reference's directory; name one with --reference.")
    return settings


def _folder(run: Path, out: Path | None, as_json: bool) -> Path | None:
    if out is None and as_json:
        return None
    named = run if run.name not in ("", "..") else run.resolve()
    folder = out or named.with_name(f"{named.name}-audit")
    if folder.is_file():
        raise RunError(f"{folder} is a file; expected a directory to write the report into: choose one with --out.")
    return folder


def _fit_of(run: Path) -> dict[str, Any]:
    """How the run was fitted: seed, num_data and the data's fingerprint."""
    from credo.engine.run import Run

    return (Run(run).config() or {}).get("fit") or {}


def _check(bnn: BNN, run: Path, method: str, seed: int, fit: dict[str, Any]) -> None:
    own = bnn.method.name if bnn.method else "a method of its own"
    if not bnn.proper:
        raise CredoError(
            f"{run} was fitted with {own}, whose prior ({bnn.model.prior.describe()}) does not integrate to one, so there is no "
            "posterior to compare with; audit a run of --method vi, map or another with a proper prior."
        )
    if own == method and seed == fit.get("seed"):
        raise SettingError(f"--seed {seed} is the seed of {run} itself, and {method} would repeat its chains; choose another.")


def _rows_of_fit(x: Tensor, y: Tensor, fit: dict[str, Any], run: Path, data: Path) -> tuple[tuple[Tensor, Tensor], list[str]]:
    """The rows of the table that the run was fitted to, where they can be told, and what the user should know about them."""
    from credo.cli.fit import _hold_out
    from credo.data.intake import intake

    count, digest = fit.get("num_data"), fit.get("data")
    if digest is None or intake((x, y)).fingerprint() == digest:
        return (x, y), []
    if count is not None and count < len(y):
        kept = _hold_out(x, y, (len(y) - count) / len(y), fit.get("seed", 0))[0]
        if intake(kept).fingerprint() == digest:
            held = f"{run} was fitted to {count} of the {len(y)} rows of {data} and held out the others; so does the reference."
            return kept, [held]
    other = f"{data} ({len(y)} rows) is not the table that {run} was fitted to ({count} rows), or has its rows in another order"
    return (x, y), [f"{other}; distances are only fair on the rows of the fit."]


def _inputs(files: RunFiles, given: Any, count: int, seed: int) -> tuple[Tensor, Tensor, list[int]]:
    """Inputs, targets and row numbers (from 1) of up to ``count`` random rows of a table or of encoded rows."""
    import torch

    from credo.audit import subsample

    x, y = given if isinstance(given, tuple) else (files.schema.encode(given), files.schema.encode_target(given))
    picked = subsample((x, torch.arange(len(y))), min(count, len(y)), seed)[1].sort().values
    return x[picked], y[picked], (picked + 1).tolist()


def _own(bnn: BNN, x: Tensor) -> tuple[str, Any] | None:
    """How well the run's own chains have mixed, in words and in numbers, where it is made of chains."""
    from credo.audit import converged, diagnose
    from credo.engine.sampling import Sampler

    return (converged(bnn, x).text, diagnose(bnn, x)) if isinstance(bnn.method, Sampler) else None


def _reference(files: RunFiles, bnn: BNN, pair: tuple[Tensor, Tensor], folder: Path | None, run: Path, **options: Any) -> BNN:
    """The reference, drawn or taken from its directory."""
    from credo.audit import held, reference
    from credo.engine.run import read_json, write_json

    digest = _digest(held(bnn))
    kept = folder is not None and (folder / _HELD).is_file()
    if folder is not None and kept and read_json(folder / _HELD).get("held") != digest:
        raise RunError(
            f"{folder} holds the reference of another fit: what {run} learned beside its weights (noise, prior, points) is not what "
            "that reference was drawn with; choose another --reference."
        )
    fresh = folder is not None and not (folder.is_dir() and any(folder.iterdir()))
    existed = folder is not None and folder.is_dir()

    def describe_run(_row: dict[str, Any]) -> None:
        # The run takes only a directory of its own, so our files join it once it has one.
        if folder is not None and not (folder / _HELD).is_file():
            files.write(folder)
            write_json(folder / _HELD, {"run": str(run), "held": digest})

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The reference is no ground truth yet")  # it is said in the results
            return reference(bnn, pair, run=folder, progress=is_terminal(), callbacks=(describe_run,), **options)
    except (CredoError, OSError):
        if folder is not None and fresh:
            discard(folder, existed=existed)
        raise


def _digest(bnn: BNN) -> str:
    """Of all numbers that the reference's model holds fixed: a run's config does not tell them."""
    import hashlib

    import torch

    digest = hashlib.blake2b(digest_size=8)
    numbers = {f"net/{n}": t for n, t in bnn.net.state_dict().items() if n not in bnn.random}
    numbers |= {f"likelihood/{n}": t for n, t in bnn.likelihood.state_dict().items()}
    numbers |= {f"prior/{n}": t for n, t in torch.nn.ModuleList(bnn.prior.parts()).state_dict().items()}
    for name, tensor in sorted(numbers.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def _print(summary: dict[str, Any]) -> None:
    from credo.cli.printing import print_table
    from credo.report.html import format_value

    typer.echo(f"Reference: {summary['reference']['text']}")
    if summary["own_chains"]:
        typer.echo(f"The run's own chains: {summary['own_chains']}")
    header = ["measure", "value", "±", "reference with itself", "verdict"]
    rows = [
        [row["label"], *(format_value(row[key], 4) for key in ("value", "error", "ceiling")), row["verdict"]]
        for row in summary["measures"]
    ]
    print_table(f"{summary['run']} ({summary['method']}) against the exact posterior, at {summary['inputs']} rows", header, rows)
    if not summary["reference"]["ok"]:
        typer.echo(summary["notes"][-1])
    seconds = summary["seconds"]
    typer.echo(f"Seconds: {seconds['reference']:.1f} for the reference, {seconds['comparison']:.1f} to compare.")
