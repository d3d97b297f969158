"""Distances of ``credo.audit.compare`` in plain words, and when they are as good as an exact
method's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

ERRORS = 2.0  # Monte Carlo errors that a distance may lie beyond what chance does
ROUNDING = 1e-9  # of means over halvings, so that equal shares of rows count as equal
CHANCE = "by chance"  # what the reference's distance from itself is called
EXACT, OFF, UNKNOWN = "as good as exact", "off", "unknown"


class Measure(NamedTuple):
    """A distance in plain words, and by how much a value is worse than a ceiling."""

    label: str
    about: str
    excess: Callable[[float, float], float]


def _higher_is_worse(value: float, ceiling: float) -> float:
    return value - ceiling


def _lower_is_worse(value: float, ceiling: float) -> float:
    return ceiling - value


def _away_from_zero(value: float, ceiling: float) -> float:
    return abs(value) - ceiling


def _away_from_one(value: float, ceiling: float) -> float:
    return max(value - ceiling, 1.0 / ceiling - value)


#: By the keys of ``credo.audit.compare``.
MEASURES = {
    "agreement": Measure("same label predicted", "Share of rows; 1 is best.", _lower_is_worse),
    "total_variation": Measure(
        "predictions apart",
        "Total variation of the distributions of the target, mean over rows: 0 is the same, 1 is "
        "nothing in common.",
        _higher_is_worse,
    ),
    "wasserstein": Measure(
        "draws apart",
        "How far draws of the prediction would have to be moved (Wasserstein distance), in "
        "deviations across the reference's draws.",
        _higher_is_worse,
    ),
    "sd_ratio": Measure(
        "relative spread of draws",
        "Deviation across draws (of log probabilities, for classes) over the reference's: below 1 "
        "is too certain, above 1 too uncertain.",
        _away_from_one,
    ),
    "mean_shift": Measure(
        "mean prediction off by",
        "Root mean square difference of the predicted means, in deviations across the reference's "
        "draws.",
        _higher_is_worse,
    ),
    "nll_difference": Measure(
        "loss difference",
        "Negative log probability of the targets less the reference's, in nats per row; below 0 "
        "the run explains these rows better.",
        _away_from_zero,
    ),
    "calibration_difference": Measure(
        "calibration difference",
        "Expected calibration error (classes) or share of targets inside the 90 % interval "
        "(numbers), less the reference's.",
        _away_from_zero,
    ),
}


def judge(found: dict[str, float], converged: bool) -> list[dict[str, Any]]:
    """One row per distance of ``credo.audit.compare``: key, label, value, error, ceiling, verdict,
    about; None for what is not finite.

    "as good as exact": at most two Monte Carlo errors worse than the reference's distance from
    itself, else "off"; "unknown" where one of the three is not finite. Without a ``converged``
    reference every verdict ends in a question mark.
    """
    rows = []
    for key, measure in MEASURES.items():
        if key not in found:
            continue
        value, error, ceiling = (found[name] for name in (key, f"{key}_error", f"{key}_ceiling"))
        known = all(map(math.isfinite, (value, error, ceiling)))
        near = known and measure.excess(value, ceiling) <= ERRORS * error + ROUNDING
        verdict = (EXACT if near else OFF if known else UNKNOWN) + ("" if converged else "?")
        numbers = {"value": finite(value), "error": finite(error), "ceiling": finite(ceiling)}
        rows.append(
            {
                "key": key,
                "label": measure.label,
                **numbers,
                "verdict": verdict,
                "about": measure.about,
            }
        )
    return rows


def finite(value: float) -> float | None:
    """The number, or None for what JSON has no word for."""
    return float(value) if math.isfinite(value) else None
