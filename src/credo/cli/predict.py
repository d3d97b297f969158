"""``credo predict``: predictions with their uncertainty, one row per row of the table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from credo.cli.guard import guarded, say
from credo.cli.run_files import RunFiles
from credo.core.errors import SettingError
from credo.core.settings import check_share

_DIGITS = "%.9g"  # all that single precision holds


@guarded
def predict(
    run: Annotated[
        Path, typer.Argument(help="Run directory written by credo fit.", show_default=False)
    ],
    data: Annotated[
        Path, typer.Argument(help="Table to predict: .csv, .tsv or .parquet.", show_default=False)
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="File to write, .csv or .parquet; stdout (CSV) if not given."),
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Number of draws from the posterior.")] = 100,
    level: Annotated[
        float,
        typer.Option(help="Probability with which a regression's interval contains the target."),
    ] = 0.9,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draws.")] = 0,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Rows per pass; all at once if not given.")
    ] = None,
) -> None:
    """Predict the rows of a table, in the units of the training table.

    Regression: mean, std, lower and upper end of the interval, and the variances total, aleatoric
    and epistemic. Classification: label, one probability per class, and total, aleatoric and
    epistemic uncertainty in nats.
    """
    from credo.bnn import load
    from credo.data.checks import check_inputs
    from credo.data.table import read_table

    if out is not None and out.suffix.lower() not in _WRITERS:
        raise SettingError(f"--out {out} ends in {out.suffix!r}; expected .csv or .parquet.")
    files = RunFiles.read(run)
    x = check_inputs(files.schema.encode(read_table(data)))
    check_share("--level", level, 0.9)
    bnn = load(run, files.build())
    columns = files.schema.target.columns(
        bnn.predict(x, num_samples=samples, seed=seed, batch_size=batch_size), level
    )
    _write(columns, out)


def _write(columns: dict[str, Any], out: Path | None) -> None:
    import pandas as pd

    from credo.core.atomic import write_atomic

    frame = pd.DataFrame(columns)
    if out is None:
        typer.echo(frame.to_csv(index=False, float_format=_DIGITS), nl=False)
        return
    if not out.parent.is_dir():
        raise SettingError(
            f"--out {out}: the directory {out.parent} does not exist; create it first."
        )
    write_atomic(out, lambda beside: _WRITERS[out.suffix.lower()](frame, beside))
    say(f"{out}: {len(frame)} predictions ({', '.join(frame.columns)})")


def _csv(frame: Any, path: Path) -> None:
    frame.to_csv(path, index=False, float_format=_DIGITS)


def _parquet(frame: Any, path: Path) -> None:
    frame.to_parquet(path, index=False)


_WRITERS = {".csv": _csv, ".parquet": _parquet}
