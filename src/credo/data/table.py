"""Tables: read them, learn their schema, and encode any later table by column name."""

from __future__ import annotations

import csv
import json
import warnings
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from credo.core.errors import DataError, nearest
from credo.data.columns import Column, Series, column_from, fit_column
from credo.data.table_target import Target, fit_target, target_from

Frame = Any
"""A pandas DataFrame."""

_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_FORMAT = 1


@final
@dataclass(frozen=True)
class TableSchema:
    """What a table's columns mean: how each becomes numbers, and how the target comes back."""

    columns: tuple[Column, ...]
    target: Target

    @staticmethod
    def fit(frame: Frame, target: str, task: str | None = None) -> TableSchema:
        """Learn the schema of a training table: numbers are standardised, text, booleans and
        categories one-hot encoded.

        Refuses a missing, constant or one-class target, missing and infinite values, and duplicate
        column names.
        """
        _refuse_duplicates([str(name) for name in frame.columns], "The table")
        if not len(frame):
            raise DataError("The table has no rows; expected at least two.")
        _column(frame, target, "target column")
        inputs = [name for name in frame.columns if name != target]
        if not inputs:
            raise DataError(
                f"The table has no column besides the target {target!r}; expected at least one to "
                "predict from."
            )
        goal = fit_target(frame[target], task)
        return TableSchema(tuple(fit_column(frame[name]) for name in inputs), goal)

    @property
    def num_features(self) -> int:
        """Columns of the encoded table."""
        return sum(column.width for column in self.columns)

    @property
    def feature_names(self) -> list[str]:
        """Names of the encoded table's columns."""
        return [name for column in self.columns for name in column.features]

    def encode(self, frame: Frame) -> Tensor:
        """``(N, num_features)`` float32.

        Columns are found by name in any order; the target and unknown columns are ignored.

        Refuses missing columns, text in numeric columns, unseen categories, NaN and infinite
        values, each with row and column.
        """
        _refuse_duplicates([str(name) for name in frame.columns], "The table")
        absent = [column.name for column in self.columns if column.name not in frame.columns]
        if absent:
            raise DataError(
                f"The table lacks {len(absent)} of {len(self.columns)} columns used in training: "
                f"{', '.join(map(repr, absent))}; "
                f"it has {', '.join(map(repr, map(str, frame.columns)))}."
            )
        if not len(frame):
            raise DataError("The table has no rows; expected at least one.")
        parts = [column.encode(frame[column.name]) for column in self.columns]
        return torch.from_numpy(np.concatenate(parts, axis=1)).float()

    def encode_target(self, frame: Frame) -> Tensor:
        """Targets: ``(N, 1)`` float32 standardised for regression, ``(N,)`` int64 for classes."""
        return self.target.encode(_column(frame, self.target.name, "target column"))

    def to_json(self) -> str:
        """The schema as JSON text."""
        entry = {
            "format": _FORMAT,
            "columns": [asdict(c) for c in self.columns],
            "target": asdict(self.target),
        }
        return json.dumps(entry, indent=2)

    @staticmethod
    def from_json(text: str) -> TableSchema:
        """The schema that :meth:`to_json` wrote; text of another kind or of a newer version is
        refused.
        """
        try:
            entry: dict[str, Any] = json.loads(text)
            if entry["format"] > _FORMAT:
                raise DataError(
                    f"The table schema has format {entry['format']}; this version reads up to "
                    f"{_FORMAT}, so upgrade credo."
                )
            return TableSchema(
                tuple(column_from(c) for c in entry["columns"]), target_from(entry["target"])
            )
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"The table schema cannot be read ({type(error).__name__}: {error}); fit the run "
                "again."
            ) from error


def read_table(path: str | Path) -> Frame:
    """A table from a .csv, .tsv or .parquet file.

    Duplicate column names, rows of differing lengths, empty, missing and unreadable files are
    refused. Columns without a name (an index written by accident) are left out with a warning.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in {*_SEPARATORS, ".parquet"}:
        raise DataError(f"{path} ends in {suffix!r}; expected a .csv, .tsv or .parquet file.")
    if not path.is_file():
        raise DataError(
            f"{path} {'is a directory' if path.is_dir() else 'does not exist'}; expected a table "
            "file."
        )
    try:
        frame = (
            _read_parquet(path) if suffix == ".parquet" else _read_text(path, _SEPARATORS[suffix])
        )
    except (
        OSError,
        UnicodeDecodeError,
        ValueError,
        csv.Error,
    ) as error:  # pyarrow's and pandas' parse errors are ValueErrors
        reason = " ".join(str(error).split())
        raise DataError(
            f"{path} cannot be read as a {suffix[1:]} table: {reason or type(error).__name__}."
        ) from error
    if not len(frame):
        raise DataError(f"{path} has a header but no rows; expected at least one.")
    return frame


def _read_text(path: Path, separator: str) -> Frame:
    import pandas as pd

    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = csv.reader(file, delimiter=separator)
        header = next((row for row in rows if row), None)
        if header is None:
            raise DataError(f"{path} is empty; expected a header line and at least one row.")
        names = [name.strip() for name in header]
        _refuse_duplicates([name for name in names if name], str(path))
        # The parser below would pad short rows with NaN and move the columns of long ones.
        for row in rows:
            if row and len(row) != len(names):
                raise DataError(
                    f"{path}, line {rows.line_num} has {len(row)} values; the header names "
                    f"{len(names)} columns."
                )
    frame = pd.read_csv(
        path, sep=separator, encoding="utf-8-sig", index_col=False, skipinitialspace=True
    )
    frame.columns = pd.Index(names)
    if "" in names:
        warnings.warn(f"{path} has a column without a name; it is left out.", stacklevel=3)
        frame = frame.loc[:, [bool(name) for name in names]]
    return frame


def _read_parquet(path: Path) -> Frame:
    import pandas as pd
    import pyarrow.parquet

    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty; expected a Parquet file.")
    _refuse_duplicates(pyarrow.parquet.read_schema(path).names, str(path))
    return pd.read_parquet(path)


def _column(frame: Frame, name: str, noun: str) -> Series:
    if name not in frame.columns:
        raise DataError(
            f"The table has no {noun} {name!r}.{nearest(name, map(str, frame.columns))}"
        )
    return frame[name]


def _refuse_duplicates(names: list[str], where: str) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(
            f"{where} has more than one column named {twice[0]!r}; rename them so that every name "
            "is used once."
        )
