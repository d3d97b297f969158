"""``credo fit``: a table in, a run directory out."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from credo.cli.assignments import parse_settings
from credo.cli.fit_options import (
    BatchSize,
    Epochs,
    Hidden,
    LearningRate,
    MaxSeconds,
    Resume,
    Seed,
    Settings,
    Strict,
    Task,
)
from credo.cli.guard import guarded, is_terminal, say
from credo.cli.run_files import TABLE, RunFiles, check_directory, discard, parse_sizes
from credo.core.errors import CredoError, FindingWarning, RunError, SettingError
from credo.core.settings import check_share

if TYPE_CHECKING:
    from credo.data.source import Source


@guarded
def fit(
    data: Annotated[
        Path,
        typer.Argument(help="Table to learn from: .csv, .tsv or .parquet.", show_default=False),
    ],
    target: Annotated[str, typer.Option(help="Column to predict.", show_default=False)],
    method: Annotated[
        str, typer.Option(help="Method that fits the posterior; credo methods lists them.")
    ] = "vi",
    task: Task = None,
    out: Annotated[Path, typer.Option(help="Run directory to write.")] = Path("run"),
    resume: Resume = False,
    hidden: Hidden = "50,50",
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    lr: LearningRate = None,
    validation: Annotated[
        float | None,
        typer.Option(
            help="Share of the rows to hold out, on which the loss is measured during training, "
            "such as 0.1."
        ),
    ] = None,
    max_seconds: MaxSeconds = None,
    strict: Strict = False,
    seed: Seed = 0,
    prior: Annotated[
        str | None,
        typer.Option(
            help="Prior of the weights by name, such as laplace, horseshoe or ard; N(0, 1) if not "
            "given."
        ),
    ] = None,
    set_: Settings = None,
) -> None:
    """Fit a network with a posterior to a table and write a run directory."""
    from credo.data.intake import intake
    from credo.data.table import read_table
    from credo.engine.diagnose import sentence
    from credo.methods import make_method
    from credo.priors import presets

    sizes = parse_sizes(hidden, "--hidden")
    check_share("--validation", validation, 0.1)
    existed = check_directory(out, resume)
    settings = parse_settings(method, set_) if set_ else {}
    chosen = make_method(method, settings)  # wrong values are refused before anything is read
    if prior is not None:
        presets[prior]  # an unknown name is refused before anything is read
    frame = read_table(data)
    files = described(frame, target, task, sizes)
    if resume and (out / TABLE).is_file():
        _check_same(files, RunFiles.read(out), out)
    pair, held_out = hold_out(
        files.schema.encode(frame), files.schema.encode_target(frame), validation, seed
    )
    source = intake(pair)
    options: dict[str, Any] = {
        "epochs": epochs,
        "batch_size": batch_size,
        "lr": lr,
        "validation": held_out,
        "max_seconds": max_seconds,
    }
    bnn = _train(files, source, out, existed, resume, prior, method=chosen, seed=seed, **options)
    _print_relevance(bnn, files)
    for finding in bnn.diagnose():
        say(f"credo: {sentence(finding)}")
    say(
        f"{out}: {method} on {len(frame)} rows, {files.schema.target.task} of {target!r}. Next: "
        f"credo predict {out} NEW.csv"
    )
    if strict and bnn.diagnose():
        raise CredoError(f"--strict: the fit has findings; {out} is kept.")


def described(frame: Any, target: str, task: str | None, sizes: tuple[int, ...]) -> RunFiles:
    """How a table becomes numbers, and the network for it."""
    from credo.data.table import TableSchema

    schema = TableSchema.fit(frame, target, task)
    args = {
        "in_features": schema.num_features,
        "hidden": list(sizes),
        "out_features": schema.target.outputs,
    }
    return RunFiles(schema, {"name": "mlp", "args": args})


def hold_out(
    x: Any, y: Any, share: float | None, seed: int
) -> tuple[tuple[Any, Any], tuple[Any, Any] | None]:
    """Training rows, and a random share of the rows to watch training by."""
    if share is None:
        return (x, y), None
    import torch

    count = round(share * len(y))
    if not 0 < count < len(y):
        raise SettingError(
            f"--validation {share} of {len(y)} rows is {count}; expected at least one row on "
            "either side."
        )
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    watched, training = order[:count], order[count:]
    return (x[training], y[training]), (x[watched], y[watched])


def _print_relevance(bnn: Any, files: RunFiles) -> None:
    """What the data made of each input, where the prior was learned per input."""
    from credo.cli.printing import print_table

    try:
        values = bnn.model.relevance(None)
    except CredoError:
        return  # the prior has nothing to say about inputs
    rows = sorted(
        zip(files.schema.feature_names, values.tolist(), strict=True), key=lambda row: -row[1]
    )
    print_table(
        "Input relevance: learned prior sd of each input's weights",
        ["input", "sd"],
        [[n, f"{v:.3g}"] for n, v in rows],
    )


def _train(
    files: RunFiles,
    source: Source,
    out: Path,
    existed: bool,
    resume: bool,
    prior: str | None,
    **options: Any,
) -> Any:
    from credo.bnn import BNN
    from credo.engine.run import Run

    # the schema has standardised the table
    net, likelihood = files.build(options["seed"]), files.schema.target.likelihood
    bnn, run = BNN(net, likelihood, prior, standardise=False), Run(out)
    files.attach(run)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FindingWarning)  # they are said at the end
            return bnn.fit(source, run=run, progress=is_terminal(), **options)
    except (CredoError, OSError):
        if not resume:
            discard(out, existed=existed)
        raise


def _check_same(now: RunFiles, before: RunFiles, out: Path) -> None:
    if now.schema != before.schema:
        raise RunError(
            f"{out} was fitted to another table or target; resume with the same data, or choose "
            "another --out."
        )
    if now.network != before.network:
        raise RunError(
            f"{out} holds a network with hidden layers {before.network['args'].get('hidden')}, "
            f"not {now.network['args']['hidden']}; resume with the same --hidden."
        )
