"""The UCI tables: what was measured beside what was published, and whether it is as good."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from credo_reproduce.outcome import Check, Row, Table, Value
from credo_reproduce.plots import bars
from credo_reproduce.uci_cells import SETS, Cell

ENOUGH = 6  # sets of nine on which the best of ours should be as good as the best that is published

#: Published log-likelihoods and, where stated, errors. DVI is measured on splits of its own.
PAPER: dict[str, dict[str, tuple[float, float | None]]] = {
    "boston": {
        "PBP": (-2.57, 3.01),
        "MC dropout": (-2.46, 2.97),
        "deep ensemble": (-2.41, 3.28),
        "MC dropout tuned": (-2.40, 2.90),
        "DVI": (-2.41, None),
    },
    "concrete": {
        "PBP": (-3.16, 5.67),
        "MC dropout": (-3.04, 5.23),
        "deep ensemble": (-3.06, 6.03),
        "MC dropout tuned": (-2.94, 4.83),
        "DVI": (-3.06, None),
    },
    "energy": {
        "PBP": (-2.04, 1.80),
        "MC dropout": (-1.99, 1.66),
        "deep ensemble": (-1.38, 2.09),
        "MC dropout tuned": (-1.21, 0.54),
        "DVI": (-1.01, None),
    },
    "kin8nm": {
        "PBP": (0.90, 0.10),
        "MC dropout": (0.95, 0.10),
        "deep ensemble": (1.20, 0.09),
        "MC dropout tuned": (1.14, 0.079),
        "DVI": (1.13, None),
    },
    "naval": {
        "PBP": (3.73, 0.006),
        "MC dropout": (3.80, 0.005),
        "deep ensemble": (5.63, 0.002),
        "MC dropout tuned": (4.45, 0.0007),
        "DVI": (6.29, None),
    },
    "power": {
        "PBP": (-2.84, 4.12),
        "MC dropout": (-2.80, 4.02),
        "deep ensemble": (-2.79, 4.11),
        "MC dropout tuned": (-2.81, 4.01),
        "DVI": (-2.80, None),
    },
    "protein": {
        "PBP": (-2.97, 4.73),
        "MC dropout": (-2.89, 4.36),
        "deep ensemble": (-2.83, 4.71),
        "MC dropout tuned": (-2.87, 4.27),
        "DVI": (-2.85, None),
    },
    "wine": {
        "PBP": (-0.97, 0.64),
        "MC dropout": (-0.93, 0.62),
        "deep ensemble": (-0.94, 0.64),
        "MC dropout tuned": (-0.93, 0.62),
        "DVI": (-0.90, None),
    },
    "yacht": {
        "PBP": (-1.63, 1.02),
        "MC dropout": (-1.55, 1.11),
        "deep ensemble": (-1.18, 1.58),
        "MC dropout tuned": (-1.25, 0.67),
        "DVI": (-0.47, None),
    },
}
#: Our method -> the published column that is the same thing; the others get rows of their own.
SAME = {"mc_dropout": "MC dropout tuned", "deep_ensemble": "deep ensemble", "moments": "DVI"}

Done = Mapping[Cell, Mapping[str, Any]]


class Mean(NamedTuple):
    """Mean over splits, its standard error (None of one split), and their number."""

    value: float
    error: float | None
    count: int

    @classmethod
    def of(cls, values: list[float]) -> Mean:
        """Of a list that is not empty."""
        n = len(values)
        mean = sum(values) / n
        error = math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1) / n) if n > 1 else None
        return cls(mean, error, n)

    def text(self, digits: int) -> str:
        """Mean ± standard error."""
        return f"{self.value:.{digits}f}" + (
            "" if self.error is None else f" ± {self.error:.{digits}f}"
        )


def _cells(done: Done, name: str, method: str) -> list[Mapping[str, Any]]:
    return [result for cell, result in done.items() if cell.set == name and cell.method == method]


def _methods(done: Done, name: str | None = None) -> list[str]:
    return sorted({cell.method for cell in done if name in (None, cell.set)})


def likelihood(done: Done, name: str, method: str) -> Mean | None:
    """Mean test log-likelihood of a method on a set."""
    found = [float(result["ll"]) for result in _cells(done, name, method)]
    return Mean.of(found) if found else None


def best(done: Done, name: str) -> tuple[str, Mean] | None:
    """The method with the highest mean among those measured on the most splits of a set."""
    found = {
        method: mean for method in _methods(done, name) if (mean := likelihood(done, name, method))
    }
    most = max((mean.count for mean in found.values()), default=0)
    full = [(mean.value, method) for method, mean in found.items() if mean.count == most]
    return (max(full)[1], found[max(full)[1]]) if full else None


def published(name: str) -> tuple[str, float]:
    """Whose published log-likelihood is the highest, and what it is."""
    whose = max(PAPER[name], key=lambda who: PAPER[name][who][0])
    return whose, PAPER[name][whose][0]


def tables(done: Done, failures: Mapping[Cell, str]) -> list[Table]:
    """One per set: a row for every method that was measured or failed, best first, and one for what
    is published of no method of ours.
    """
    names = [name for name in SETS if any(cell.set == name for cell in [*done, *failures])]
    return [_table(done, failures, name) for name in names]


def _table(done: Done, failures: Mapping[Cell, str], name: str) -> Table:
    failed = {cell.method: why for cell, why in failures.items() if cell.set == name}
    rows = []
    for method in sorted({*_methods(done, name), *failed}):
        theirs = PAPER[name].get(SAME.get(method, ""), (None, None))
        paper: dict[str, Value] = {"log-likelihood": theirs[0], "RMSE": theirs[1]}
        rows.append(
            (
                likelihood(done, name, method),
                Row(method, _measured(done, name, method, failures), paper),
            )
        )
    rows.sort(key=lambda row: -math.inf if row[0] is None else row[0].value, reverse=True)
    beside = {SAME.get(row.label) for _, row in rows}
    others = [
        Row(who, {}, {"log-likelihood": ll, "RMSE": rmse})
        for who, (ll, rmse) in PAPER[name].items()
        if who not in beside
    ]
    counts = {mean.count for mean, _ in rows if mean}
    standard = SETS[name].splits
    short = (
        f" Fewer splits than the standard {standard}: see the column."
        if counts and min(counts) < standard
        else ""
    )
    note = (
        "Mean over splits ± its standard error, in the units of the targets; everything was "
        "chosen on a validation part of the training split."
        f"{short} DVI was published on splits of its own."
    )
    columns = ("log-likelihood", "RMSE", "splits", "chosen most", "seconds", "failed")
    shown = columns if failed else columns[:-1]
    return Table(
        f"{name}: test log-likelihood and error", shown, [*(row for _, row in rows), *others], note
    )


def _measured(done: Done, name: str, method: str, failures: Mapping[Cell, str]) -> dict[str, Value]:
    found = _cells(done, name, method)
    failed = [why for cell, why in failures.items() if (cell.set, cell.method) == (name, method)]
    out: dict[str, Value] = {"failed": f"{len(failed)} splits: {failed[0]}" if failed else None}
    if not found:
        return out
    ll, rmse = (Mean.of([float(result[key]) for result in found]) for key in ("ll", "rmse"))
    digits = 3 if rmse.value >= 0.1 else 5
    popular = Counter(str(result["candidate"]) for result in found).most_common(1)[0][0]
    seconds = sum(float(result["seconds"]) for result in found) / len(found)
    return out | {
        "log-likelihood": ll.text(3),
        "RMSE": rmse.text(digits),
        "splits": ll.count,
        "chosen most": popular,
        "seconds": round(seconds, 1),
    }


def summary(done: Done) -> Table:
    """Sets by methods, with the best of ours and the best that is published."""
    used, rows = _methods(done), []
    for name in SETS:
        ours = best(done, name)
        if ours is None:
            continue
        whose, value = published(name)
        measured: dict[str, Value] = {
            "best of ours": f"{ours[1].text(2)} ({ours[0]})",
            "best published": f"{value:.2f} ({whose})",
        }
        measured |= {
            method: mean.text(2) for method in used if (mean := likelihood(done, name, method))
        }
        rows.append(Row(name, measured))
    note = (
        "Both bests are the highest of several means on the same test parts; of ours only methods "
        "measured on the most splits take part."
    )
    return Table(
        "Test log-likelihood on all sets", ("best of ours", "best published", *used), rows, note
    )


def checks(done: Done) -> list[Check]:
    """Per set and over all sets: at least as good as the best published."""
    out, won = [], 0
    for name in SETS:
        ours = best(done, name)
        if ours is None:
            continue
        whose, value = published(name)
        holds = ours[1].value >= value
        won += holds
        splits = f"{ours[1].count} of {SETS[name].splits} splits"
        out.append(
            Check(
                f"{name}: best of ours",
                f"{ours[1].text(3)} ({ours[0]}, {splits})",
                f"at least {value:.2f} ({whose})",
                holds,
            )
        )
    if out:
        out.append(
            Check(
                "as good as the best published",
                f"on {won} of {len(out)} sets measured",
                f"on at least {ENOUGH} of 9",
                won >= ENOUGH,
            )
        )
    return out


def figure(done: Done) -> list[dict[str, Any]]:
    """How far the best of ours is from the best published, in nats, on every set."""
    gaps = {name: ours[1].value - published(name)[1] for name in SETS if (ours := best(done, name))}
    if not gaps:
        return []
    return [
        bars(
            "Best of ours minus best published",
            list(gaps),
            list(gaps.values()),
            "log-likelihood, nats per example",
            caption="Above zero is better than all five published methods.",
        )
    ]
