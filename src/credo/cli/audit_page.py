"""The page of ``credo audit``: distances with verdicts, predictions of both sides, and how well
chains have mixed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, final

from credo.cli.audit_measures import CHANCE, EXACT, finite

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from credo.audit import Diagnosis
    from credo.bnn import BNN
    from credo.data.table_target import ClassTarget, NumericTarget, Target

SCALARS = 4  # whose chains are shown
ALIKE = 0.9  # correlation with an output already shown, above which another adds nothing


@final
class View(NamedTuple):
    """How a target is shown: a name per column of the predicted mean, outputs and means in its own
    units, and deviations.
    """

    names: Sequence[str]
    output: str
    location: Callable[[Tensor], np.ndarray]
    deviation: Callable[[Tensor], np.ndarray]


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


def predictions(bnn: BNN, truth: BNN, x: Tensor, target: Target, name: str) -> list[dict[str, Any]]:
    """Entries of ``report.curves``: means, and deviations across draws, of the run against the
    reference's, a point per row and class.
    """
    shown = view(target)
    sides = []
    for model in (truth, bnn):
        p = model.predict(x, num_samples=model.posterior.atoms or truth.posterior.atoms or 1)
        draws = p.likelihood.moments(p.outputs.double())[0]
        sides.append((shown.location(draws.mean(0)), shown.deviation(draws.std(0, correction=0))))
    captions = (
        "Each point is a row (and a class); on the dashed line both predict the same.",
        "How much the prediction differs between draws: below the dashed line the run is too "
        "certain, above it too uncertain.",
    )
    titles = ("Predicted mean", "Deviation of the prediction across draws")
    return [
        _against(title, name, shown.names, sides[0][place], sides[1][place], caption)
        for place, (title, caption) in enumerate(zip(titles, captions, strict=True))
    ]


def _against(
    title: str, name: str, columns: Sequence[str], x: np.ndarray, y: np.ndarray, caption: str
) -> dict[str, Any]:
    low, high = float(min(x.min(), y.min())), float(max(x.max(), y.max()))
    points = [
        {"name": column, "x": _short(x[:, place]), "y": _short(y[:, place])}
        for place, column in enumerate(columns)
    ]
    line = {"name": "the same", "x": [low, high], "y": [low, high], "dash": True, "colour": -1}
    return {
        "title": title,
        "x_label": "reference",
        "y_label": name,
        "points": points,
        "lines": [line],
        "caption": caption,
    }


def chains(
    truth: BNN, x: Tensor, numbers: Sequence[int], target: Target
) -> dict[str, list[dict[str, Any]]]:
    """Entries of ``report``'s sections on chains: up to four outputs with the largest R-hat that
    are not alike, and the energies.

    ``numbers`` are the rows' in their table. Outputs that never move or are not finite have no
    R-hat and are not shown, nor are energies of samplers that record none.
    """
    import numpy as np

    from credo.audit import function_draws

    shown = view(target)
    draws = function_draws(truth, x)
    entries = []
    for row, place, found in _worst(draws):
        label = f"{shown.output} {shown.names[place]}"
        title = f"{label}, row {numbers[row]} (R-hat {found:.3f})"
        values = shown.location(draws[:, :, row, place])
        entries.append(
            {"title": title, "y_label": label, "chains": [_short(chain) for chain in values]}
        )
    rows = [
        row["energy"] for row in truth.history if row.get("warmup") is False and "energy" in row
    ]
    energies = np.asarray(rows, dtype=float).T
    moved = energies.ndim == 2 and energies.shape[1] > 1 and bool(np.isfinite(energies).all())
    energy = [{"title": "Energy", "chains": [_short(chain) for chain in energies]}] if moved else []
    return {"trace": entries, "ranks": entries, "energy": energy}


def _worst(draws: Tensor) -> list[tuple[int, int, float]]:
    """Input, output and R-hat of the worst of ``(C, D, N, F)``; neighbours in input space say the
    same, so each must add something.
    """
    import torch

    from credo.metrics.chain_diagnostics import rhat

    flat = draws.detach().double().flatten(2)
    found = rhat(flat)
    chosen: list[int] = []
    for index in found.nan_to_num(nan=-math.inf, posinf=math.inf).argsort(descending=True).tolist():
        if len(chosen) == SCALARS or math.isnan(float(found[index])):
            break
        pairs = [
            torch.stack([flat[..., index].flatten(), flat[..., other].flatten()])
            for other in chosen
        ]
        if all(abs(float(pair.corrcoef()[0, 1])) < ALIKE for pair in pairs):
            chosen.append(index)
    return [(*divmod(index, draws.shape[-1]), float(found[index])) for index in chosen]


def _short(values: np.ndarray) -> list[float]:
    """Six digits are more than a figure shows, and half the file."""
    return [float(f"{value:.6g}") for value in values.tolist()]


def page(summary: dict[str, Any], tasks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What ``credo.report.write`` takes; ``summary`` is stored beside the figures."""
    about = (
        f"How far the predictions of {summary['method']} are from those of the posterior it "
        "approximates."
    )
    return {
        "title": f"Audit of {summary['run']}",
        "subtitle": about,
        "tasks": list(tasks),
        "summary": summary,
    }


def distances(summary: dict[str, Any], figures: list[dict[str, Any]]) -> dict[str, Any]:
    """The first part of the page: measures and verdicts."""
    columns = [
        {"key": "value", "label": "value", "digits": 4},
        {
            "key": "error",
            "label": "±",
            "digits": 4,
            "help": "Standard error from finite draws on both sides.",
        },
        {
            "key": "ceiling",
            "label": CHANCE,
            "digits": 4,
            "help": "The reference with itself, one half of its chains against the other: no "
            "method does better but by luck.",
        },
        {
            "key": "verdict",
            "label": "verdict",
            "help": f"'{EXACT}': at most two errors worse than by chance. A question mark: the "
            "reference has not converged.",
        },
        {"key": "about", "label": "what it is"},
    ]
    rows = [{"method": row["label"], **row} for row in summary["measures"]]
    text = " ".join(
        [f"Predictions at {summary['inputs']} rows of {summary['table']}.", *summary["notes"]]
    )
    return {
        "title": "Is it as good as exact?",
        "description": text,
        "label": "measure",
        "columns": columns,
        "rows": rows,
        "curves": figures,
    }


def diagnosis(title: str, text: str, told: Diagnosis, figures: dict[str, Any]) -> dict[str, Any]:
    """A part of the page: how well chains have mixed, parameter by parameter and in the network's
    outputs.
    """
    columns = [
        {"key": "size", "label": "numbers", "digits": 0},
        {
            "key": "rhat",
            "label": "R-hat",
            "digits": 3,
            "help": "Spread over all chains against that within them, at worst; near 1.",
        },
        {
            "key": "ess_bulk",
            "label": "ESS, bulk",
            "digits": 0,
            "help": "Independent draws that the chains are worth, at worst.",
        },
        {
            "key": "ess_tail",
            "label": "ESS, tails",
            "digits": 0,
            "help": "The same for the 5 % and 95 % quantiles.",
        },
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
    about = (
        f"{text} Judge by the network's outputs: units may change places, weights and all, and no "
        "prediction notices."
    )
    return {
        "title": title,
        "description": about,
        "label": "parameter",
        "columns": columns,
        "rows": rows,
        **figures,
    }
