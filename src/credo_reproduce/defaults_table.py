"""The panel of defaults as tables, and what is checked of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from credo.core.errors import RunError
from credo_reproduce.defaults_cells import Cell
from credo_reproduce.defaults_problems import GENERATIVE
from credo_reproduce.defaults_search import RECOMMENDED
from credo_reproduce.defaults_targets import Verdict, best_known, judge
from credo_reproduce.outcome import Check, Row, Table, Value

Results = Mapping[Cell, Mapping[str, Any]]
SHARE_NEAR, SHARE_DIAGNOSE = 0.9, 0.05


def verdicts(wanted: Sequence[Cell], results: Results) -> dict[Cell, Verdict]:
    """Every cell of defaults that is wanted, judged."""
    best = best_by_cell(results)
    return {
        cell: judge(results.get(cell), best.get((cell.method, cell.problem, cell.seed)))
        for cell in wanted
        if not cell.trial
    }


def best_by_cell(results: Results) -> dict[tuple[str, str, int], float | None]:
    """The best known test nll of each method, problem and seed."""
    rows: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for cell, row in results.items():
        rows.setdefault((cell.problem, cell.seed), []).append(row)
    return {
        (cell.method, cell.problem, cell.seed): best_known(
            rows[cell.problem, cell.seed], cell.method
        )
        for cell in results
    }


def tables(judged: Mapping[Cell, Verdict], results: Results) -> list[Table]:
    """Verdicts, the numbers under them and the seconds: a row per method, a column per problem;
    generative models by themselves.
    """
    out = []
    for seed in sorted({cell.seed for cell in judged}):
        for generative in (False, True):
            cells = [
                cell
                for cell in judged
                if cell.seed == seed and (cell.problem in GENERATIVE) == generative
            ]
            if cells:
                name = "generative models" if generative else "networks"
                title = f"{name}, seed {seed}"
                numbers = {cell: _numbers(results.get(cell)) for cell in cells}
                spent = {cell: results.get(cell, {}).get("seconds") for cell in cells}
                said = {cell: judged[cell].text for cell in cells}
                out += [
                    _grid(f"Defaults of {title}", said, NOTE),
                    _grid(f"Test nll, or distance from the exact posterior: {title}", numbers),
                    _references(f"What cells are measured by: {title}", cells, results),
                    _grid(f"Seconds of a fit: {title}", spent),
                ]
    return out


def _searched(method: str, results: Results, columns: Sequence[str], seed: int) -> dict[str, Value]:
    """By problem, the best test nll among the searched settings of a method."""
    found: dict[str, Value] = {}
    for name in columns:
        trials = [
            row["nll"]
            for cell, row in results.items()
            if (cell.method, cell.problem, cell.seed) == (method, name, seed)
            and cell.trial
            and row.get("nll") is not None
        ]
        if trials:
            found[name] = min(trials)
    return found


def earlier_search(path: Path) -> dict[Cell, dict[str, Any]]:
    """The best of every search in the result file of an earlier run, as trials."""
    try:
        stored = json.loads(path.read_text())["record"]["outcome"]["tables"]
        found: dict[Cell, dict[str, Any]] = {}
        for table in stored:
            start, _, seed = table["title"].rpartition(", seed ")
            rows = table["rows"] if start.startswith("What cells are measured by") else []
            for row in rows:
                method = row["label"].removeprefix(BEST_OF).removesuffix(SEARCHED)
                if method in RECOMMENDED:
                    for problem, nll in row["measured"].items():
                        cell = Cell(method, problem, int(seed), 1)
                        found[cell] = cell.result("fitted", nll=nll)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path} is not the result file of a panel ({error!r}).") from error
    return found


BEST_OF, SEARCHED = "best of ", "'s searched settings"
NOTE = (
    "near: within half a posterior deviation and 35 % of the variances where the posterior is "
    "known, else within 0.1 nats of the best known test nll of the method. far: not near, and a "
    "finding says so. SILENT: not near, and no finding."
)


def _grid(title: str, entries: Mapping[Cell, Value], note: str = "") -> Table:
    columns = list(dict.fromkeys(cell.problem for cell in entries))
    rows: dict[str, dict[str, Value]] = {}
    for cell, entry in entries.items():
        rows.setdefault(cell.method, {})[cell.problem] = entry
    return Table(title, columns, [Row(name, row) for name, row in rows.items()], note)


def _numbers(result: Mapping[str, Any] | None) -> Value:
    if result is None or result["status"] != "fitted":
        return None
    if result.get("offset") is None:
        return result.get("nll")
    text = f"{result['offset']:.2g} sd"
    if result.get("least_ratio") is not None and result.get("largest_ratio") is not None:
        text += f", x {result['least_ratio']:.2f} to {result['largest_ratio']:.2f}"
    return text


def _references(title: str, cells: Sequence[Cell], results: Results) -> Table:
    columns = list(dict.fromkeys(cell.problem for cell in cells))
    seed = cells[0].seed

    def first(key: str, method: str | None = None) -> dict[str, Value]:
        found: dict[str, Value] = {}
        for cell, row in results.items():
            fits = cell.seed == seed and not cell.trial and method in (None, cell.method)
            if fits and cell.problem in columns and row.get(key) is not None:
                found.setdefault(cell.problem, row[key])
        return found

    rows = [
        *(
            Row(f"{BEST_OF}{method}{SEARCHED}", known)
            for method in RECOMMENDED
            if (known := _searched(method, results, columns, seed))
        ),
        Row("exact answer", first("exact_nll")),
        Row("base rate", first("base_nll")),
        Row("map", first("nll", "map")),
        Row("mle", first("nll", "mle")),
    ]
    return Table(title, columns, rows)


def silent(judged: Mapping[Cell, Verdict], results: Results) -> Table:
    """What the panel is about: far from the target, and nothing said."""
    rows = []
    for cell, verdict in judged.items():
        if verdict.word == "silent":
            row = results[cell]
            label = f"{cell.method} on {cell.problem}" + (
                f", seed {cell.seed}" if cell.seed else ""
            )
            measured: dict[str, Value] = {
                "how far": verdict.text.removeprefix("SILENT ").strip("()"),
                "nll": row.get("nll"),
                "base rate": row.get("base_nll"),
                "ended": row.get("ended"),
                "seconds": row.get("seconds"),
            }
            rows.append(Row(label, measured))
    return Table("Silent cells", ["how far", "nll", "base rate", "ended", "seconds"], rows)


def unfitted(judged: Mapping[Cell, Verdict], results: Results) -> Table:
    """What was refused, what gave up and what failed, once per sentence."""
    reasons: dict[tuple[str, str, str], list[str]] = {}
    for cell, verdict in judged.items():
        if verdict.word in ("refused", "gave up", "failed"):
            key = verdict.word, cell.method, str(results[cell].get("why", ""))
            reasons.setdefault(key, []).append(cell.problem)
    rows = [
        Row(method, {"how": word, "on": ", ".join(dict.fromkeys(places)), "why": why})
        for (word, method, why), places in reasons.items()
    ]
    return Table("Refused, given up and failed", ["how", "on", "why"], rows)


def share_near(judged: Mapping[Cell, Verdict]) -> tuple[int, int]:
    """Of the recommended methods: cells that are near without a finding, and all that were fitted,
    gave up, failed or ran out of time.
    """
    counted = [
        verdict
        for cell, verdict in judged.items()
        if cell.method in RECOMMENDED
        and cell.problem not in GENERATIVE
        and verdict.word in ("near", "far", "silent", "gave up", "failed", "time")
    ]
    return sum(verdict.text == "near" for verdict in counted), len(counted)


def diagnose_share(judged: Mapping[Cell, Verdict], results: Results) -> float | None:
    """The median share of a fit that ``diagnose`` takes."""
    shares = [
        row["diagnose_seconds"] / row["seconds"]
        for cell in judged
        if (row := results.get(cell)) is not None and row["status"] == "fitted"
    ]
    return median(shares) if shares else None


def summary(judged: Mapping[Cell, Verdict], results: Results) -> Table:
    """Counts of every kind of cell, and medians of time."""
    words = [verdict.word for verdict in judged.values()]
    plain = sum(verdict.text == "near" for verdict in judged.values())
    seconds = [
        row["seconds"]
        for cell in judged
        if (row := results.get(cell)) is not None and row["status"] == "fitted"
    ]
    near, counted = share_near(judged)
    share = diagnose_share(judged, results)
    entries: dict[str, Value] = {
        "cells": len(words),
        "near, without findings": plain,
        "near, with findings": words.count("near") - plain,
        "far, with findings": words.count("far"),
        "silent: far, without findings": words.count("silent"),
        "refused": words.count("refused"),
        "gave up in the fit, with a sentence": words.count("gave up"),
        "failed": words.count("failed"),
        "out of time": words.count("time"),
        "not fitted yet, or nothing to compare with": words.count("missing"),
        "recommended methods: near without findings": f"{near} of {counted}",
        "median seconds of a fit": median(seconds) if seconds else None,
        "median share of diagnose, per cent": None if share is None else 100 * share,
    }
    return Table("Summary", ["value"], [Row(name, {"value": v}) for name, v in entries.items()])


def panel_checks(judged: Mapping[Cell, Verdict], results: Results) -> list[Check]:
    """What defaults should do."""
    count = sum(verdict.word == "silent" for verdict in judged.values())
    near, counted = share_near(judged)
    share = diagnose_share(judged, results)
    return [
        Check("no silent cell", f"{count}", "0", count == 0),
        Check(
            "recommended methods are near without findings",
            f"{near} of {counted}",
            f"at least {SHARE_NEAR:.0%}",
            near >= SHARE_NEAR * counted,
        ),
        Check(
            "diagnose is cheap, in the median",
            "nothing fitted" if share is None else f"{share:.2%} of a fit",
            f"at most {SHARE_DIAGNOSE:.0%}",
            share is not None and share <= SHARE_DIAGNOSE,
        ),
    ]
