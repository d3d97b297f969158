"""``credo task distill``: one small network that predicts what a run's posterior predicts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from credo.cli.assignments import parse_settings
from credo.cli.fit_options import BatchSize, Epochs, LearningRate, Resume, Seed, Settings
from credo.cli.guard import guarded, is_terminal, say
from credo.cli.run_files import RunFiles, check_directory, discard, parse_sizes
from credo.core.errors import CredoError

if TYPE_CHECKING:
    from credo.bnn import BNN
    from credo.data.table_target import Target
    from credo.tasks.distill import Distilled

_UNIT = {"total": "mse"}  # a total uncertainty has the unit of a squared error


@guarded
def distill(
    run: Annotated[
        Path,
        typer.Argument(
            help="Run directory of the teacher, written by credo fit.", show_default=False
        ),
    ],
    data: Annotated[
        Path,
        typer.Argument(
            help="Table with the inputs to teach at, .csv, .tsv or .parquet; it needs no target.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option(help="Run directory of the student to write.")] = Path(
        "student"
    ),
    resume: Resume = False,
    hidden: Annotated[
        str, typer.Option(help="Sizes of the student's hidden layers, with commas between them.")
    ] = "50,50",
    inputs: Annotated[
        str,
        typer.Option(
            help="Inputs to teach at: training takes the rows as they are, perturbed adds fresh "
            "noise in every epoch."
        ),
    ] = "training",
    noise: Annotated[
        float, typer.Option(help="Noise of perturbed rows, in standard deviations of each column.")
    ] = 0.1,
    samples: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Posterior draws behind a prediction to learn; 100, or 10 of perturbed rows, if "
            "not given.",
        ),
    ] = None,
    method: Annotated[str, typer.Option(help="Method that fits the student.")] = "mle",
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    lr: LearningRate = None,
    test: Annotated[
        Path | None,
        typer.Option(
            help="Table to compare student and teacher at; DATA if not given. With the target, "
            "also against it."
        ),
    ] = None,
    seed: Seed = 0,
    set_: Settings = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON in place of a table.")
    ] = False,
) -> None:
    """Teach one network to predict, in one pass, what the posterior of a run predicts with many.

    The student's run directory serves credo predict and credo evaluate. Its uncertainty is the
    teacher's total; how much of it more data would remove is lost.
    """
    from credo.bnn import load
    from credo.cli.printing import print_table
    from credo.data.table import read_table
    from credo.methods import make_method

    settings = parse_settings(method, set_) if set_ else {}
    make_method(method, settings)  # a wrong name or value is refused before anything is read
    sizes = parse_sizes(hidden, "--hidden")
    teacher_files = RunFiles.read(run)
    teacher = load(run, teacher_files.build())
    existed = check_directory(out, resume)
    schema = teacher_files.schema
    x = schema.encode(read_table(data))
    held_out = None if test is None else _test(teacher_files, read_table(test))
    files = RunFiles(schema, _network(teacher, x, sizes))
    options: dict[str, Any] = {
        "inputs": inputs,
        "noise": noise,
        "num_samples": samples,
        "method": method,
        "epochs": epochs,
    }
    options |= {"batch_size": batch_size, "lr": lr, "test": held_out, "seed": seed}
    found = _teach(teacher, files, x, out, existed, resume, **options, **settings)
    values = {key: _in_units(key, value, schema.target) for key, value in found.fidelity.items()}
    if as_json:
        typer.echo(
            json.dumps(
                {key: value if value == value else None for key, value in values.items()}, indent=2
            )
        )  # NaN is no JSON
    else:
        rows = [[key, f"{value:.4g}"] for key, value in values.items()]
        print_table(
            f"{out} against its teacher {run}, at {test or data}", ["measure", "value"], rows
        )
    say(f"{out}: a student of {run}, taught at {len(x)} rows. Next: credo predict {out} NEW.csv")


def _test(files: RunFiles, frame: Any) -> Any:
    """Inputs, and the target where the table has it."""
    x = files.schema.encode(frame)
    return (
        (x, files.schema.encode_target(frame)) if files.schema.target.name in frame.columns else x
    )


def _network(teacher: BNN, x: Any, sizes: tuple[int, ...]) -> dict[str, Any]:
    """A perceptron as wide as the student's likelihood needs."""
    likelihood = teacher.model.likelihood
    width = likelihood.student().student_outputs(likelihood, teacher.functions(x[:2], 1).shape[-1])
    return {
        "name": "mlp",
        "args": {"in_features": x.shape[1], "hidden": list(sizes), "out_features": width},
    }


def _teach(
    teacher: BNN, files: RunFiles, x: Any, out: Path, existed: bool, resume: bool, **options: Any
) -> Distilled:
    from credo.engine.run import Run
    from credo.tasks import distill as task

    student, run = files.build(options["seed"]), Run(out)
    files.attach(run)
    try:
        return task.distill(teacher, student, x, run=run, progress=is_terminal(), **options)
    except (CredoError, OSError):
        if not resume:
            discard(out, existed=existed)
        raise


def _in_units(key: str, value: float, target: Target) -> float:
    """A measure of the teacher or the student in the units of the table; measures of both have
    none.
    """
    name, _, who = key.rpartition("_")
    if who not in ("teacher", "student"):
        return value
    unit = _UNIT.get(name, name)
    return target.metrics({unit: value})[unit]
