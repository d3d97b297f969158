"""The two comparisons of ``credo demo``: what is fitted, what is measured, what the report
shows.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from credo.cli.guard import say
from credo.core.errors import FindingWarning
from credo.data import letters, load

LEVEL = 0.9  # probability of the intervals shown


@final
@dataclass(frozen=True)
class Entry:
    """One row of a comparison: a label, a method and its settings."""

    label: str
    method: str
    settings: dict[str, Any]
    prior: str | None = None
    lr: float | None = None


ARD = Entry(
    "VI, ARD prior", "vi", {"estimator": "local"}, "ard", 2e-2
)  # a learned width has further to go than a weight
ENTRIES = (
    Entry("MLE", "mle", {}),
    Entry("MAP", "map", {}),
    Entry("VI, local", "vi", {"estimator": "local"}),
    Entry("VI, flipout", "vi", {"estimator": "flipout"}),
    Entry("MC dropout", "mc_dropout", {}),
    Entry("concrete dropout", "concrete_dropout", {}),
    Entry("deep ensemble", "deep_ensemble", {"num_members": 5}),
    Entry("SWAG", "swag", {"optimizer": "adam"}),
)


def digits(fast: bool, report: Callable[[str], None]) -> dict[str, Any]:
    """8 x 8 digits, with letters and noise as inputs that belong to no class."""
    from credo import metrics, nets

    data = load("digits")
    x, y = torch.tensor(data["x"] / 16.0, dtype=torch.float32), torch.tensor(data["y"])
    train, test = _split(len(x), 360, seed=0)
    strange = torch.tensor(letters(360, seed=0) / 16.0, dtype=torch.float32)
    noise = torch.randint(0, 17, (360, 64), generator=torch.Generator().manual_seed(0)) / 16.0
    task = _task("Handwritten digits: classification", _DIGITS_ABOUT, _DIGITS_COLUMNS)
    for entry in ENTRIES:
        report(f"digits: {entry.label}")
        bnn, seconds = _fit(
            nets.mlp,
            (64, (100,), 10),
            "categorical",
            (x[train], y[train]),
            entry,
            12 if fast else 120,
            lr=1e-2,
        )
        inside, letter, noisy = (
            bnn.predict(part, num_samples=_samples(fast)) for part in (x[test], strange, noise)
        )
        found = {
            "accuracy": metrics.accuracy(inside.mean, y[test]),
            "nll": -inside.log_prob(y[test]).mean(),
            "ece": metrics.ece(inside.mean, y[test]),
            "letters_total": metrics.auroc(inside.total, letter.total),
            "noise_total": metrics.auroc(inside.total, noisy.total),
        }
        row: dict[str, float | None] = {name: float(value) for name, value in found.items()}
        # A point estimate has no epistemic part to rank by.
        ranked = float(inside.epistemic.max()) > 1e-6
        row["letters_epistemic"] = (
            float(metrics.auroc(inside.epistemic, letter.epistemic)) if ranked else None
        )
        task["rows"].append({"method": entry.label, **row, "seconds": seconds})
        bins = metrics.reliability(inside.mean, y[test], bins=10)
        task["reliability"].append({"method": entry.label} | _bins(bins))
        groups = [("test digits", inside), ("letters", letter), ("noise", noisy)]
        shown = [{"name": name, "values": _numbers(p.total)} for name, p in groups]
        task["uncertainty"].append(
            {"method": entry.label, "measure": "total uncertainty (nats)", "groups": shown}
        )
        _add_objective(task, entry, bnn)
    return task


def diabetes(fast: bool, report: Callable[[str], None]) -> dict[str, Any]:
    """Disease progression from ten measurements, in the data's own units."""
    import pandas as pd

    from credo import nets
    from credo.data.table import TableSchema

    data = load("diabetes")
    frame = pd.DataFrame(data["x"], columns=[str(name) for name in data["feature_names"]]).assign(
        progression=data["y"]
    )
    train, test = _split(len(frame), 88, seed=1)
    inside, outside = frame.iloc[train.numpy()], frame.iloc[test.numpy()]
    schema = TableSchema.fit(inside, "progression", "regression")
    pair = schema.encode(inside), schema.encode_target(inside)
    test_pair = schema.encode(outside), schema.encode_target(outside)
    grid = torch.linspace(-2.5, 4.0, 60)
    along = list(inside.columns).index("bmi")
    slice_ = torch.zeros(len(grid), schema.num_features).index_copy(
        1, torch.tensor([along]), grid[:, None]
    )
    bmi = schema.columns[along]
    task = _task("Diabetes: regression", _DIABETES_ABOUT, _DIABETES_COLUMNS)
    for entry in (*ENTRIES, ARD):
        report(f"diabetes: {entry.label}")
        bnn, seconds = _fit(
            nets.mlp,
            (schema.num_features, (50,), 1),
            "gaussian",
            pair,
            entry,
            20 if fast else 200,
            lr=5e-3,
        )
        found = schema.target.metrics(bnn.evaluate(test_pair, num_samples=_samples(fast)))
        columns = schema.target.columns(bnn.predict(test_pair[0], _samples(fast)), LEVEL)
        truth = outside["progression"].to_numpy()
        covered = float(((columns["lower"] <= truth) & (truth <= columns["upper"])).mean())
        width = float((columns["upper"] - columns["lower"]).mean())
        task["rows"].append(
            {
                "method": entry.label,
                "rmse": found["rmse"],
                "nll": found["nll"],
                "coverage": covered,
                "width": width,
                "seconds": seconds,
            }
        )
        line = schema.target.columns(bnn.predict(slice_, num_samples=_samples(fast)), LEVEL)
        band = {name: line[name].tolist() for name in ("mean", "lower", "upper")}
        points = {"data_x": inside["bmi"].tolist(), "data_y": inside["progression"].tolist()}
        x = (bmi.mean + bmi.std * grid.double()).tolist()  # type: ignore[union-attr]
        labels = {"x_label": "body mass index", "y_label": "disease progression", "level": LEVEL}
        task["band"].append({"method": entry.label, "x": x} | band | points | labels)
        _add_objective(task, entry, bnn)
        if entry.prior == "ard":
            task["bars"].append(_relevance(bnn, schema.feature_names))
    return task


def _fit(
    net: Callable[..., Any],
    shape: tuple[Any, ...],
    likelihood: str,
    pair: Any,
    entry: Entry,
    epochs: int,
    lr: float,
) -> Any:
    import credo

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        bnn = credo.BNN(net(*shape), likelihood, entry.prior)
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FindingWarning)  # they are said below
        bnn.fit(
            pair,
            method=entry.method,
            epochs=epochs,
            batch_size=64,
            lr=entry.lr or lr,
            seed=0,
            progress=False,
            **entry.settings,
        )
    seconds = time.perf_counter() - started
    for finding in bnn.diagnose():
        say(f"  found: {finding.name} ({finding.evidence})")
    return bnn, seconds


def _samples(fast: bool) -> int:
    return 20 if fast else 100


def _split(total: int, held_out: int, seed: int) -> tuple[Tensor, Tensor]:
    order = torch.randperm(total, generator=torch.Generator().manual_seed(seed))
    return order[held_out:], order[:held_out]


def _task(title: str, about: str, columns: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "title": title,
        "description": about,
        "columns": columns,
        "rows": [],
        "reliability": [],
        "uncertainty": [],
        "band": [],
        "objective": [],
        "curves": [],
        "bars": [],
    }


def _add_objective(task: dict[str, Any], entry: Entry, bnn: Any) -> None:
    from credo.report.curve_figures import rates

    names = {"nll": "data term", "kl": "prior term (KL)"}
    parts = [
        {"name": label, "values": [float(row[key]) for row in bnn.history]}
        for key, label in names.items()
    ]
    curve = rates(entry.label, bnn.history)
    if curve is not None:
        task["curves"].append(curve)
    # A point estimate under a flat prior has a constant second part, which says nothing.
    moving = [part for part in parts if len(set(part["values"])) > 1]
    task["objective"].append({"method": entry.label, "parts": moving})


def _relevance(bnn: Any, names: list[str]) -> dict[str, Any]:
    """Which inputs the data kept, most relevant first."""
    pairs = sorted(zip(names, _numbers(bnn.relevance()), strict=True), key=lambda pair: -pair[1])
    return {
        "title": "Which inputs matter? Learned by the ARD prior",
        "names": [name for name, _ in pairs],
        "values": [value for _, value in pairs],
        "x_label": "prior sd of the input's weights",
        "caption": "Every input has a prior width of its own, learned with the weights. A width "
        "near zero switches the input off; the "
        "bars say what the network may use, not the direction of an effect.",
    }


def _bins(bins: Any) -> dict[str, list[float]]:
    return {name: _numbers(getattr(bins, name)) for name in ("confidence", "accuracy", "count")}


def _numbers(values: Tensor) -> list[float]:
    return [round(float(value), 6) for value in values.flatten()]


_SECONDS = {"key": "seconds", "label": "seconds", "digits": 1, "help": "Time to fit."}
_NLL = {
    "key": "nll",
    "label": "NLL",
    "digits": 3,
    "better": "low",
    "help": "Mean negative log-likelihood of test outcomes in nats; lower is better.",
}
_DIGITS_COLUMNS: list[dict[str, Any]] = [
    {
        "key": "accuracy",
        "label": "accuracy",
        "digits": 3,
        "better": "high",
        "help": "Share of test digits whose most probable class is right.",
    },
    _NLL,
    {
        "key": "ece",
        "label": "ECE",
        "digits": 3,
        "better": "low",
        "help": "Mean gap between confidence and accuracy over bins of confidence.",
    },
    {
        "key": "letters_total",
        "label": "letters AUROC (total)",
        "digits": 3,
        "better": "high",
        "help": "Chance that a letter gets a higher total uncertainty than a test digit; 0.5 is "
        "guessing.",
    },
    {
        "key": "letters_epistemic",
        "label": "letters AUROC (epistemic)",
        "digits": 3,
        "better": "high",
        "help": "The same by epistemic uncertainty, which a point estimate does not have.",
    },
    {
        "key": "noise_total",
        "label": "noise AUROC (total)",
        "digits": 3,
        "better": "high",
        "help": "The same for random pixels.",
    },
    _SECONDS,
]
_DIABETES_COLUMNS: list[dict[str, Any]] = [
    {
        "key": "rmse",
        "label": "RMSE",
        "digits": 2,
        "better": "low",
        "help": "Root mean squared error of the predicted mean, in units of the target.",
    },
    _NLL,
    {
        "key": "coverage",
        "label": "coverage of 90 %",
        "digits": 3,
        "help": "Share of test outcomes inside their 90 % interval; 0.9 is right, less is "
        "over-confident.",
    },
    {
        "key": "width",
        "label": "interval width",
        "digits": 1,
        "help": "Mean width of the 90 % interval; only narrow is good when coverage holds.",
    },
    _SECONDS,
]
_DIGITS_ABOUT = (
    "The 8 x 8 digits of scikit-learn: 1,437 to learn from, 360 to test. Letters A to J and "
    "random pixels, which belong to no "
    "class, show whether the network notices that it is being asked something strange. One "
    "network, 64-100-10, "
    f"the default prior, {len(ENTRIES)} ways to fit it."
)
_DIABETES_ABOUT = (
    "Progression of diabetes after a year for 442 patients, from ten measurements: 354 to learn "
    "from, 88 to test. "
    f"One network, 10-50-1, the default prior, {len(ENTRIES)} ways to fit it, and an ARD prior."
)
