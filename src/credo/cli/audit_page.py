"""What ``credo audit`` shows: distances in plain words with verdicts, and the page with figures of predictions and chains."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, final

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from credo.audit import Diagnosis
    from credo.bnn import BNN
    from credo.data.target import ClassTarget, NumericTarget, Target

ERRORS = 2.0  # Monte Carlo errors that a distance may lie beyond what chance does
SCALARS = 4  # whose chains are shown
PROBES = 64  # inputs among which they are looked for
DRAWS = 2000  # of a continuous posterior for the figures
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
        "predictive distributions apart",
        "Total variation of the distributions of the target, mean over rows: 0 is the same, 1 is nothing in common.",
        _higher_is_worse,
    ),
    "wasserstein": Measure(
        "draws apart",
        "How far draws of the prediction would have to be moved (Wasserstein distance), in deviations across the reference's draws.",
        _higher_is_worse,
    ),
    "sd_ratio": Measure(
        "spread of draws, relative",
        "Deviation across draws over the reference's: below 1 is too certain, above 1 too uncertain.",
        _away_from_one,
    ),
    "mean_error": Measure(
        "mean prediction off by",
        "Root mean square difference of the predicted means, in deviations across the reference's draws.",
        _higher_is_worse,
    ),
    "nll_difference": Measure(
        "loss, minus the reference's",
        "Negative log probability of the targets, in nats per row; below 0 the run explains these rows better.",
        _away_from_zero,
    ),
    "calibration_difference": Measure(
        "calibration, minus the reference's",
        "Of classes the expected calibration error, of numbers the share of targets inside the 90 % interval.",
        _away_from_zero,
    ),
}


def judge(found: dict[str, float], settled: bool) -> list[dict[str, Any]]:
    """One row per distance of ``credo.audit.compare``: key, label, value, error, ceiling, verdict, about; None for what is not finite.

    "as good as exact": at most two Monte Carlo errors worse than the reference's distance from itself, else "off"; "unknown" where
    one of the three is not finite. Without a ``settled`` reference every verdict ends in a question mark.
    """
    rows = []
    for key, measure in MEASURES.items():
        if key not in found:
            continue
        value, error, ceiling = (found[name] for name in (key, f"{key}_error", f"{key}_ceiling"))
        known = all(map(math.isfinite, (value, error, ceiling)))
        near = known and measure.excess(value, ceiling) <= ERRORS * error
        verdict = (EXACT if near else OFF if known else UNKNOWN) + ("" if settled else "?")
        numbers = {"value": finite(value), "error": finite(error), "ceiling": finite(ceiling)}
        rows.append({"key": key, "label": measure.label, **numbers, "verdict": verdict, "about": measure.about})
    return rows


def finite(value: float) -> float | None:
    """The number, or None for what JSON has no word for."""
    return float(value) if math.isfinite(value) else None


@final
class View(NamedTuple):
    """How a target is shown: a name per column of the predicted mean, outputs and means in its own units, and deviations."""

    names: Sequence[str]
    output: str
    location: Callable[[Tensor], np.ndarray]
    spread: Callable[[Tensor], np.ndarray]


def _of_number(target: NumericTarget) -> View:
    return View([target.name], "predicted", target.decode_mean, target.decode_std)


def _of_classes(target: ClassTarget) -> View:
    def plain(values: Tensor) -> np.ndarray:
        return values.detach().double().cpu().numpy()

    return View(target.classes, "score of", plain, plain)


_VIEWS: dict[str, Callable[[Any], View]] = {"regression": _of_number, "classification": _of_classes}


def view(target: Target) -> View:
    """How this target is shown."""
    return _VIEWS[target.task](target)


def predictions(bnn: BNN, truth: BNN, x: Tensor, target: Target, name: str, seed: int) -> list[dict[str, Any]]:
    """Entries of ``report.curves``: means, and deviations across draws, of the run against the reference's, a point per row and class."""
    shown = view(target)
    sides = []
    for model in (truth, bnn):
        p = model.predict(x, samples=model.posterior.atoms or DRAWS, seed=seed)
        draws = p.likelihood.moments(p.outputs.double())[0]
        sides.append((shown.location(draws.mean(0)), shown.spread(draws.std(0, correction=0))))
    captions = (
        "Each point is a row (and a class); on the dashed line both predict the same.",
        "How much the prediction differs between draws: below the dashed line the run is too certain, above it too uncertain.",
    )
    titles = ("Predicted mean", "Deviation of the prediction across draws")
    return [
        _against(title, name, shown.names, sides[0][place], sides[1][place], caption)
        for place, (title, caption) in enumerate(zip(titles, captions, strict=True))
    ]


def _against(title: str, name: str, columns: Sequence[str], x: np.ndarray, y: np.ndarray, caption: str) -> dict[str, Any]:
    low, high = float(min(x.min(), y.min())), float(max(x.max(), y.max()))
    points = [{"name": column, "x": _short(x[:, place]), "y": _short(y[:, place])} for place, column in enumerate(columns)]
    line = {"name": "the same", "x": [low, high], "y": [low, high], "dash": True, "colour": -1}
    return {
        "title": title, "x_label": "reference", "y_label": name, "points": points, "lines": [line], "caption": caption,
    }  # fmt: skip


def chains(truth: BNN, x: Tensor, numbers: Sequence[int], target: Target) -> dict[str, list[dict[str, Any]]]:
    """Entries of ``report``'s sections on chains: up to four outputs with the largest R-hat, one per input, and the energies.

    ``numbers`` are the rows' in their table. Outputs that never move or are not finite have no R-hat and are not shown.
    """
    import torch

    from credo.audit import function_draws
    from credo.metrics.chains import rhat

    shown = view(target)
    draws = function_draws(truth, x[:PROBES])
    worst, which = rhat(draws).nan_to_num(nan=-math.inf, posinf=math.inf).max(-1)
    entries = []
    for row in worst.argsort(descending=True)[:SCALARS].tolist():
        if worst[row] == -math.inf:
            continue
        place = int(which[row])
        label = f"{shown.output} {shown.names[place]}"
        values = shown.location(draws[:, :, row, place])
        title = f"{label}, row {numbers[row]} (R-hat {float(worst[row]):.3f})"
        entries.append({"title": title, "y_label": label, "chains": [_short(chain) for chain in values]})
    energies = [row["energy"] for row in truth.history if row.get("warmup") is False and "energy" in row]
    columns = torch.tensor(energies, dtype=torch.float64).mT.numpy() if len(energies) > 1 else []
    moved = [{"title": "Energy", "chains": [_short(chain) for chain in columns]}] if len(columns) else []
    return {"trace": entries, "ranks": entries, "energy": moved}


def _short(values: np.ndarray) -> list[float]:
    """Six digits are more than a figure shows, and half the file."""
    return [float(f"{value:.6g}") for value in values.tolist()]


def page(summary: dict[str, Any], tasks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What ``credo.report.write`` takes; ``summary`` is stored beside the figures."""
    about = f"How far the predictions of {summary['method']} are from those of the posterior it approximates."
    return {"title": f"Audit of {summary['run']}", "subtitle": about, "tasks": list(tasks), "summary": summary}


def distances(summary: dict[str, Any], figures: list[dict[str, Any]]) -> dict[str, Any]:
    """The first part of the page: measures and verdicts."""
    columns = [
        {"key": "value", "label": "value", "digits": 4},
        {"key": "error", "label": "±", "digits": 4, "help": "Standard error from finite draws on both sides."},
        {
            "key": "ceiling",
            "label": "reference with itself",
            "digits": 4,
            "help": "The same between halves of the reference's chains: no method does better but by luck.",
        },
        {
            "key": "verdict",
            "label": "verdict",
            "help": f"'{EXACT}': at most two errors worse than the reference with itself. A question mark: the reference has not converged.",
        },
        {"key": "about", "label": "what it is"},
    ]
    rows = [{"method": row["label"], **row} for row in summary["measures"]]
    text = " ".join([f"Predictions at {summary['inputs']} rows of {summary['table']}.", *summary["notes"]])
    return {
        "title": "Is it as good as exact?", "description": text, "label": "measure", "columns": columns, "rows": rows, "curves": figures,
    }  # fmt: skip


def diagnosis(title: str, text: str, told: Diagnosis, figures: dict[str, Any]) -> dict[str, Any]:
    """A part of the page: how well chains have mixed, parameter by parameter and in the network's outputs."""
    columns = [
        {"key": "size", "label": "numbers", "digits": 0},
        {
            "key": "rhat",
            "label": "R-hat",
            "digits": 3,
            "help": "Spread over all chains against that within them, at worst; near 1.",
        },
        {"key": "ess_bulk", "label": "ESS, bulk", "digits": 0, "help": "Independent draws that the chains are worth, at worst."},
        {"key": "ess_tail", "label": "ESS, tails", "digits": 0, "help": "The same for the 5 % and 95 % quantiles."},
        {
            "key": "mcse",
            "label": "error of the mean",
            "digits": 3,
            "help": "Monte Carlo error in posterior deviations, at worst.",
        },
    ]
    rows = []
    for row in told.rows():
        named = "network outputs" if row["name"] == "functions" else row["name"]
        rows.append({"method": named} | {c["key"]: finite(row[c["key"]]) for c in columns})
    about = f"{text} Judge by the network's outputs: weights may change places without any prediction noticing."
    return {"title": title, "description": about, "label": "parameter", "columns": columns, "rows": rows, **figures}
