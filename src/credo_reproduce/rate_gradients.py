"""Three ways to learn a drop rate: relaxed masks (concrete), REINFORCE and ARM, by bias, variance,
time and result.

(a) On a network small enough to go through all its masks, the gradient of the expected nll for the
logit of every layer's drop rate is known exactly; relaxed masks are biased, the other two may not
be. (b) On the embedded digits, with weights trained at fixed rates of 0.1, means and variances of
the same gradients on one fixed batch, so that all randomness is that of the masks; then variances
at other rates. ARM runs two passes for one gradient, so its variance at equal cost is twice as
large. REINFORCE has a strong baseline here, the mean loss of the batch's other examples. (c) Fits
from the same start. Dropout is on the inputs too, so that two layers have rates of their own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from credo.bnn import BNN
from credo.core.seeds import generator, isolated, mix
from credo.core.settings import setting
from credo.nets import mlp
from credo_reproduce.base import Experiment, Say, experiments
from credo_reproduce.mask_gradients import KINDS, LAYERS, Kind, Moments, exact, gradients, rates_of
from credo_reproduce.outcome import Check, Outcome, Row, Table
from credo_reproduce.plots import bars, curves, line
from credo_reproduce.probes import digits

Z = 4.0  # standard errors; a right estimator fails once in 16,000 comparisons
TEST = 500
RATE = 0.1  # of the measurement, and at the start of fits
RATES = (0.02, 0.1, 0.3, 0.5)  # at which the variance is measured, too
NO_MOVE = 1e-6  # multiple of the learning rate at which rates stay where they are


@experiments.register("rate_gradients")
@dataclass(frozen=True)
class RateGradients(Experiment):
    """Bias and variance of gradients of drop rates, and where they lead."""

    name: ClassVar[str] = "rate_gradients"
    title: ClassVar[str] = "Learning drop rates: relaxed masks, REINFORCE and ARM"
    reference: ClassVar[str] = (
        "Gal, Hron and Kendall 2017, Concrete dropout; Yin and Zhou 2019, ARM; Williams 1992, "
        "REINFORCE."
    )
    cost: ClassVar[str] = "2.5 minutes on one CPU core"
    needs: ClassVar[tuple[str, ...]] = ("digits",)
    quick_settings: ClassVar[dict[str, Any]] = {
        "epochs": 2,
        "count": 20,
        "small_count": 20,
        "seeds": 1,
        "samples": 5,
    }

    hidden: int = setting(50, "Hidden units.", ge=1)
    epochs: int = setting(100, "Epochs of every fit.", ge=1)
    batch: int = setting(100, "Examples in a minibatch, in training and in the measurement.", ge=2)
    count: int = setting(5000, "Gradients behind a mean and a variance on digits.", ge=2)
    small_count: int = setting(20_000, "The same on the small network.", ge=2)
    seeds: int = setting(3, "Fits of each kind.", ge=1)
    samples: int = setting(100, "Posterior draws behind a held-out nll.", ge=1)

    def run(self, device: torch.device, seed: int, say: Say) -> Outcome:
        """Exact on a small network, measured on digits, then fits."""
        say("small network")
        truth, enumerable = self.enumerated(device, seed)
        train, test = (tuple(part.to(device) for part in split) for split in digits(seed, TEST))
        say("trained point")
        point = self.fit(KINDS[0], train, seed, device, rate_lr=NO_MOVE)
        x, y = (part[: self.batch] for part in train)
        large, others = {}, {}
        for kind in KINDS:
            say(f"gradients: {kind.label}")
            large[kind.label] = gradients(point, kind, x, y, self.count, seed, RATE)
            others[kind.label] = [
                large[kind.label]
                if rate == RATE
                else gradients(point, kind, x, y, max(2, self.count // 5), seed, rate)
                for rate in RATES
            ]
        ends: dict[str, list[dict[str, float]]] = {kind.label: [] for kind in KINDS}
        courses = {}
        for place in range(self.seeds):
            for kind in KINDS:
                say(f"fit {place + 1}: {kind.label}")
                bnn = self.fit(kind, train, seed + place, device)
                ends[kind.label].append(self.result(bnn, test))
                courses.setdefault(kind.label, bnn.history)
        tables = [
            _small_table(truth, enumerable, self.small_count),
            _large_table(large, self),
            _ends_table(ends, self),
        ]
        figures = [
            figure
            for layer in LAYERS
            for figure in (
                _bars(large, layer),
                _variances(others, layer),
                _rates_over_epochs(courses, layer),
            )
        ]
        return Outcome(tables, figures, _checks(truth, enumerable, large))

    def enumerated(
        self, device: torch.device, seed: int
    ) -> tuple[dict[str, float], dict[str, dict[str, Moments]]]:
        """The exact gradient on a 3-4-2 network, and every kind's moments."""
        source = generator(seed, "small")
        x = torch.randn(8, 3, generator=source)
        y = (x[:, 0] + x[:, 1] > 0).long()
        with isolated(mix(seed, "small net")):
            net = mlp(3, (4,), 2)
        how = {
            "layers": "all",
            "p": 0.3,
            "epochs": 200,
            "lr": 0.05,
            "rate_lr": NO_MOVE,
            "progress": False,
        }
        bnn = BNN(net).fit((x, y), "concrete_dropout", seed=seed, device=device, **how)
        x, y = x.to(device), y.to(device)
        return exact(bnn, x, y), {
            kind.label: gradients(bnn, kind, x, y, self.small_count, seed) for kind in KINDS
        }

    def fit(
        self,
        kind: Kind,
        train: tuple[Tensor, ...],
        seed: int,
        device: torch.device,
        **settings: Any,
    ) -> BNN:
        """Concrete dropout on digits with one of the gradients."""
        with isolated(mix(seed, "net")):
            net = mlp(64, (self.hidden,), 10)
        how = {
            "gradient": kind.gradient,
            "temperature": kind.temperature,
            "layers": "all",
            "p": RATE,
        }
        common = {"epochs": self.epochs, "batch_size": self.batch, "lr": 3e-3, "progress": False}
        return BNN(net).fit(
            train, "concrete_dropout", seed=seed, device=device, **common, **how, **settings
        )

    def result(self, bnn: BNN, test: tuple[Tensor, ...]) -> dict[str, float]:
        """Learned rates, scores on the test set, and the time of a step."""
        p = bnn.predict(test[0], num_samples=self.samples)
        seconds = sorted(row["seconds"] for row in bnn.history)[len(bnn.history) // 2]
        return {
            f"rate, {layer}": float(rates_of(bnn).rate(name)) for layer, name in LAYERS.items()
        } | {
            "test nll": -float(p.log_prob(test[1]).mean()),
            "test error %": 100 * float((p.label != test[1]).double().mean()),
            "ms per step": 1e3 * seconds / math.ceil((1797 - TEST) / self.batch),
        }


def _small_table(
    truth: dict[str, float], enumerable: dict[str, dict[str, Moments]], count: int
) -> Table:
    columns = [
        f"{layer}: {what}" for layer in LAYERS for what in ("mean", "bias in standard errors")
    ]
    rows = [Row("exact", {f"{layer}: mean": value for layer, value in truth.items()})]
    for label, found in enumerable.items():
        cells: dict[str, Any] = {}
        for layer, m in found.items():
            cells |= {
                f"{layer}: mean": m.mean,
                f"{layer}: bias in standard errors": (m.mean - truth[layer]) / m.error,
            }
        rows.append(Row(label, cells))
    return Table(
        "(a) Gradients on a network of 3-4-2 units",
        columns,
        rows,
        f"{count} gradients of each kind; exact: over all 128 masks.",
    )


def _large_table(large: dict[str, dict[str, Moments]], settings: RateGradients) -> Table:
    columns, rows = (
        ["passes", *(f"{layer}: {what}" for layer in LAYERS for what in ("mean", "variance"))],
        [],
    )
    for kind in KINDS:
        cells: dict[str, Any] = {"passes": kind.passes}
        for layer, m in large[kind.label].items():
            cells |= {
                f"{layer}: mean": f"{m.mean:.2e} ± {m.error:.0e}",
                f"{layer}: variance": m.variance,
            }
        rows.append(Row(kind.label, cells))
    note = f"{settings.count} gradients on one batch of {settings.batch}; ± one standard error."
    return Table(
        f"(b) Gradients on digits, with weights trained at rates of {RATE:g}", columns, rows, note
    )


def _ends_table(ends: dict[str, list[dict[str, float]]], settings: RateGradients) -> Table:
    rows = [
        Row(label, {name: sum(e[name] for e in all_) / len(all_) for name in all_[0]})
        for label, all_ in ends.items()
    ]
    note = (
        f"Means over {settings.seeds} starts, each the same for all kinds; {settings.epochs} "
        f"epochs from rates of {RATE:g}."
    )
    return Table("(c) Fits on digits", list(rows[0].measured), rows, note)


def _bars(large: dict[str, dict[str, Moments]], layer: str) -> dict[str, Any]:
    values = [math.sqrt(large[kind.label][layer].variance) for kind in KINDS]
    names = [kind.label for kind in KINDS]
    title, label = f"Deviation of the gradient, {layer} layer", "standard deviation of one gradient"
    return bars(title, names, values, label)


def _variances(others: dict[str, list[dict[str, Moments]]], layer: str) -> dict[str, Any]:
    lines = [
        line(label, RATES, [found[layer].variance for found in all_], marks=True)
        for label, all_ in others.items()
    ]
    return curves(
        f"Variance of the gradient, {layer} layer",
        "rate of both layers",
        "variance",
        lines,
        log_x=True,
        log_y=True,
        caption="Weights as trained at 0.1; one gradient, whatever its number of passes.",
    )


def _rates_over_epochs(courses: dict[str, list[dict[str, Any]]], layer: str) -> dict[str, Any]:
    key = f"rate/{LAYERS[layer]}"
    lines = [
        line(label, [row["epoch"] + 1 for row in history], [row[key] for row in history])
        for label, history in courses.items()
    ]
    return curves(f"Drop rate, {layer} layer", "epoch", "rate", lines)


def _checks(
    truth: dict[str, float],
    enumerable: dict[str, dict[str, Moments]],
    large: dict[str, dict[str, Moments]],
) -> list[Check]:
    """No bias where none may be, and the order of variances."""
    out = []
    for kind in KINDS:
        if not kind.biased:
            worst = max(
                abs(m.mean - truth[layer]) / m.error for layer, m in enumerable[kind.label].items()
            )
            out.append(
                Check(
                    f"{kind.label} has no bias",
                    f"{worst:.1f} standard errors",
                    f"below {Z:g}",
                    worst < Z,
                )
            )
    one, two = (large[kind.label] for kind in KINDS if not kind.biased)
    furthest = max(
        abs(one[layer].mean - two[layer].mean) / math.hypot(one[layer].error, two[layer].error)
        for layer in LAYERS
    )
    out.append(
        Check(
            "REINFORCE and ARM agree on digits",
            f"{furthest:.1f} standard errors",
            f"below {Z:g}",
            furthest < Z,
        )
    )
    base = large["REINFORCE"]
    for kind in KINDS:
        if kind.label != "REINFORCE":
            worst = max(
                large[kind.label][layer].variance / base[layer].variance for layer in LAYERS
            )
            told = f"at most {worst:.2g} of it" + (
                f", {kind.passes * worst:.2g} at equal cost" if kind.passes > 1 else ""
            )
            out.append(
                Check(
                    f"{kind.label}: less variance than REINFORCE",
                    told,
                    "below 1 in both layers",
                    worst < 1.0,
                )
            )
    return out
