"""What an experiment brings back: tables beside the paper's, figures, checks, and the record of the
run that made them.
"""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, final

import torch

Value = float | int | str | None


@final
@dataclass(frozen=True)
class Row:
    """One line of a table: what was measured here and, where the source states it, what the source
    says; both by column.
    """

    label: str
    measured: Mapping[str, Value]
    paper: Mapping[str, Value] = field(default_factory=dict)


@final
@dataclass(frozen=True)
class Table:
    """Rows under ``columns``; where the source states a value it stands in brackets behind the
    measured one.

    Numbers are shown with ``digits`` significant digits, or more where a whole number has them.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Row]
    note: str = ""
    digits: int = 3

    def cells(self, row: Row) -> list[str]:
        """One row as it is shown."""
        out = []
        for name in self.columns:
            theirs = row.paper.get(name)
            ours = shown(row.measured.get(name), self.digits)
            out.append(ours if theirs is None else f"{ours} ({shown(theirs, self.digits)})")
        return out

    def caption(self) -> str:
        """The note, and how to read the brackets where there are any."""
        brackets = any(value is not None for row in self.rows for value in row.paper.values())
        return " ".join(
            [
                *(["In brackets: the source."] if brackets else []),
                *([self.note] if self.note else []),
            ]
        )


@final
@dataclass(frozen=True)
class Check:
    """A statement about the measurement: what was expected, what came out, and whether it holds."""

    name: str
    measured: str
    expected: str
    holds: bool


@final
@dataclass(frozen=True)
class Outcome:
    """Everything an experiment shows.

    ``figures`` are specifications of the report: ``{"kind": "curves" or "bars", ...}``.
    """

    tables: Sequence[Table] = ()
    figures: Sequence[dict[str, Any]] = ()
    checks: Sequence[Check] = ()
    notes: Sequence[str] = ()


@final
@dataclass(frozen=True)
class Result:
    """An outcome with what it takes to judge and repeat it: settings, seed, seconds and machine."""

    experiment: str
    title: str
    reference: str
    quick: bool
    settings: Mapping[str, Any]
    seed: int
    seconds: float
    machine: Mapping[str, Any]
    outcome: Outcome

    def to_json(self) -> dict[str, Any]:
        """Plain values only; a number that is not finite becomes None."""
        return plain({**asdict(self), "outcome": asdict(self.outcome)})

    def page(self) -> dict[str, Any]:
        """What ``credo.report.write`` takes: the tables as tasks, with the checks first and the
        figures last.

        The record (settings, seed, machine, checks, tables) rides along, so the JSON beside the
        page holds it too.
        """
        outcome = self.outcome
        tasks = [
            *([_checks_task(outcome.checks)] if outcome.checks else []),
            *map(_table_task, outcome.tables),
        ]
        kinds = sorted({figure["kind"] for figure in outcome.figures})
        if kinds:
            tasks.append(
                {"title": "Figures", "columns": [], "rows": []}
                | {
                    kind: [figure for figure in outcome.figures if figure["kind"] == kind]
                    for kind in kinds
                }
            )
        record = self.to_json()
        record["outcome"].pop("figures")
        return plain(
            {"title": self.title, "subtitle": self.subtitle(), "tasks": tasks, "record": record}
        )

    def subtitle(self) -> str:
        """Reference, machine, time, and the notes."""
        hurried = (
            "QUICK RUN: sizes cut down to see that everything works; the numbers mean nothing. "
            if self.quick
            else ""
        )
        where = (
            self.machine.get("gpu")
            or f"{self.machine['processor']}, {self.machine['threads']} thread(s)"
        )
        made = f"Seed {self.seed}, {self.seconds:.0f} s on {where}, torch {self.machine['torch']}."
        return f"{hurried}{self.reference} {made} {' '.join(self.outcome.notes)}".strip()


def machine(device: torch.device) -> dict[str, Any]:
    """The computer a run was made on."""
    return {
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": str(device),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
    }


def shown(value: Value, digits: int) -> str:
    """A value as text: ``digits`` significant digits, a dash where there is none."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return str(value)
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        places = 0 if value == 0 else max(0, digits - 1 - math.floor(math.log10(abs(value))))
        return f"{value:.{places}f}"
    return f"{value:.{digits - 1}e}"


def mean_and_std(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation; the latter is zero for a single value."""
    mean = sum(values) / len(values)
    return mean, math.sqrt(sum((v - mean) ** 2 for v in values) / max(len(values) - 1, 1))


def plain(value: Any) -> Any:
    """Numbers, texts, lists and dictionaries that JSON can hold."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


def _checks_task(checks: Sequence[Check]) -> dict[str, Any]:
    columns = [
        {"key": key, "label": label, "prose": True}
        for key, label in (("holds", ""), ("expected", "expected"), ("measured", "measured"))
    ]
    rows = [
        {"method": c.name, "holds": verdict(c), "expected": c.expected, "measured": c.measured}
        for c in checks
    ]
    return {"title": "Checks", "label": "check", "columns": columns, "rows": rows}


def verdict(check: Check) -> str:
    """Two or three words."""
    return "holds" if check.holds else "does not hold"


def _table_task(table: Table) -> dict[str, Any]:
    columns = [{"key": str(place), "label": label} for place, label in enumerate(table.columns)]
    rows = [
        {"method": row.label} | {str(place): cell for place, cell in enumerate(table.cells(row))}
        for row in table.rows
    ]
    return {
        "title": table.title,
        "label": "",
        "description": table.caption(),
        "columns": columns,
        "rows": rows,
    }
