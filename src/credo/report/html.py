"""One self-contained HTML page, and the results it was made from as JSON beside it."""

from __future__ import annotations

import importlib.util
import json
from importlib import resources
from pathlib import Path
from typing import Any

from credo.core.atomic import write_atomic
from credo.core.errors import DataError, RunError, SettingError
from credo.report.figures import SECTIONS

_LONG = 24  # characters beyond which a cell is prose, and its column set to the left and wrapped


def write(results: dict[str, Any], path: str | Path) -> Path:
    """Write ``results`` as a page at ``path`` (.html) and as ``results.json`` in the same folder;
    returns the page's path.

    ``results``: title, subtitle and tasks; other keys are only stored. A task has title,
    description, label (of the first column), columns (``{"key", "label", "digits", "better",
    "help", "prose"}`` with better "high", "low" or None, and prose true for text), rows
    (``{"method": ..., key: value}``, None for a missing value), and lists under the keys of
    ``figures.SECTIONS``. Fails where a value is not JSON (a NaN, a tensor), where the extra
    ``report`` is not installed, or where the folder cannot be written; then nothing is left behind.
    """
    path = Path(path)
    try:
        text = json.dumps(results, indent=1, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"The results cannot be written as JSON ({error}); use plain numbers and None for "
            "missing ones."
        ) from error
    page = render(results)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(
            f"Cannot create {path.parent}: {error.strerror or error}; choose another folder."
        ) from error
    write_atomic(path, lambda beside: beside.write_text(page, encoding="utf-8"))
    write_atomic(
        path.with_name("results.json"), lambda beside: beside.write_text(text, encoding="utf-8")
    )
    return path


def require() -> None:
    """Refuse before any work is done where the packages a report needs are not installed."""
    for package in ("jinja2", "plotly"):
        if importlib.util.find_spec(package) is None:
            raise SettingError(
                f"A report needs the package {package!r}: pip install 'credo-bayes[report]'."
            )


def render(results: dict[str, Any]) -> str:
    """The page as text: no requests leave it, Plotly is inside."""
    require()
    import jinja2
    from plotly.offline import get_plotlyjs

    figures: dict[str, Any] = {}
    tasks = [_task(task, place, figures) for place, task in enumerate(results["tasks"])]
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    template = environment.from_string(
        resources.files("credo.report").joinpath("template.html.j2").read_text(encoding="utf-8")
    )
    # Inside a script element only "<" could end the element early.
    encoded = json.dumps(figures, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return template.render(
        title=results["title"],
        subtitle=results.get("subtitle", ""),
        tasks=tasks,
        plotly_js=get_plotlyjs(),
        figures_json=encoded,
    )


def format_value(value: Any, digits: int) -> str:
    """A number with ``digits`` decimals, a dash where there is none, and text as it is."""
    if value is None:
        return "–"
    return (
        f"{value:,.{digits}f}"
        if isinstance(value, (int, float)) and not isinstance(value, bool)
        else str(value)
    )


def best_value(values: list[float | None], better: str | None, digits: int) -> float | None:
    """The best of a column after rounding to what is shown, or None where no value is better than
    another.
    """
    found = [round(value, digits) for value in values if isinstance(value, (int, float))]
    if better not in ("high", "low") or len(set(found)) < 2:
        return None
    return max(found) if better == "high" else min(found)


def _task(task: dict[str, Any], place: int, figures: dict[str, Any]) -> dict[str, Any]:
    columns = [
        {"help": "", "better": None, "digits": 3, "prose": False} | column
        for column in task["columns"]
    ]
    best = {
        c["key"]: best_value([row.get(c["key"]) for row in task["rows"]], c["better"], c["digits"])
        for c in columns
    }
    for column in columns:
        values = [row.get(column["key"]) for row in task["rows"]]
        column["prose"] |= any(isinstance(value, str) and len(value) > _LONG for value in values)
    rows = []
    for row in task["rows"]:
        cells = [_cell(row.get(c["key"]), c["digits"], best[c["key"]]) for c in columns]
        rows.append({"method": row["method"], "cells": cells})
    sections = []
    for section in SECTIONS:
        shown = []
        for entry in task.get(section.key) or []:
            shown.append(
                {
                    "id": f"figure-{place}-{section.key}-{len(shown)}",
                    "caption": entry.get("caption", ""),
                }
            )
            figures[shown[-1]["id"]] = section.draw(entry)
        if shown:
            sections.append(
                {
                    "heading": section.heading,
                    "caption": section.caption,
                    "wide": section.wide,
                    "figures": shown,
                }
            )
    return {
        "title": task["title"],
        "label": task.get("label", "method"),
        "description": task.get("description", ""),
        "ranked": any(column["better"] for column in columns),
        "columns": columns,
        "rows": rows,
        "sections": sections,
    }


def _cell(value: Any, digits: int, best: float | None) -> dict[str, Any]:
    return {
        "text": format_value(value, digits),
        "best": best is not None and value is not None and round(value, digits) == best,
    }
