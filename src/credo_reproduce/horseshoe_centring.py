"""Centred against non-centred horseshoe: two forms of q under one prior, on data whose width is
known.

A teacher of a few tanh units over the square [-1, 1]^2 makes the data; a student of the same kind,
far too wide, has to find how many it needs. Centred, q is over the weights and their scale is in
the prior alone; non-centred, w = z v and q is over z and v. The ELBOs bound the same evidence, so
the higher one is the better q. A run that stops early shows the path and not the form: with the
learning rate falling to zero every curve ends flat, so that what twice the steps bring is measured
apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from credo.bnn import BNN
from credo.core.errors import SettingError
from credo.core.seeds import isolated, mix
from credo.core.settings import setting
from credo.likelihoods import Gaussian
from credo.nets import mlp
from credo.posteriors import GroupScale
from credo_reproduce.base import Experiment, Say, experiments, graph_on
from credo_reproduce.outcome import Check, Outcome, Row, Table, mean_and_std
from credo_reproduce.plots import curves, line
from credo_reproduce.width_teacher import Problem, problem

FORMS = {"centred": True, "non-centred": False}
BANK = "0.weight"  # the scales of the hidden units
POINTS = 150  # of a curve over epochs
COLUMNS = [
    "ELBO per point",
    "kept width",
    "largest scale",
    "median scale",
    "test rmse",
    "test nll",
    "seconds",
]


def scales_of(bnn: BNN) -> Tensor:
    """E[z] of the hidden units, largest first."""
    family = next(f for f in bnn.posterior.factors if isinstance(f, GroupScale))
    return family.scales.first(BANK).detach().sort(descending=True).values.cpu()


class Found(NamedTuple):
    """One fit: the numbers of the table, the history, and the scales at the end."""

    numbers: dict[str, float]
    history: list[dict[str, Any]]
    scales: list[float]


@experiments.register("horseshoe_centring")
@dataclass(frozen=True)
class HorseshoeCentring(Experiment):
    """Both forms at several sizes of the data."""

    name: ClassVar[str] = "horseshoe_centring"
    title: ClassVar[str] = (
        "Centred and non-centred horseshoe: ELBO, scales and the width that is kept"
    )
    reference: ClassVar[str] = (
        "Ghosh, Yao and Doshi-Velez 2018, Structured variational learning of Bayesian neural "
        "networks with horseshoe priors; Ingraham and Marks "
        "2017, Variational inference for sparse and undirected models; Louizos, Ullrich and "
        "Welling 2017, Bayesian compression for deep learning."
    )
    cost: ClassVar[str] = "20 minutes on one CPU core"
    quick_settings: ClassVar[dict[str, Any]] = {
        "sizes": "10,20",
        "width": 8,
        "units": 2,
        "seeds": 2,
        "epochs": 20,
        "num_test": 20,
        "samples": 10,
    }

    sizes: str = setting("50,200,1000", "Numbers of training points, rising, by commas.")
    units: int = setting(5, "Hidden units of the teacher.", ge=1)
    width: int = setting(50, "Hidden units of the student.", ge=1)
    noise: float = setting(
        0.1, "Standard deviation of the labels' noise, which the likelihood knows.", gt=0.0
    )
    seeds: int = setting(3, "Teachers, each with its data and its start.", ge=1)
    epochs: int = setting(10_000, "Steps on all data.", ge=10)
    lr: float = setting(0.1, "Learning rate of Adam at the start; it falls to zero.", gt=0.0)
    scale_lr: float = setting(
        1.0, "Learning rate of the scales, as a multiple of the weights'.", gt=0.0
    )
    num_test: int = setting(2000, "Test points.", ge=2)
    samples: int = setting(300, "Posterior draws behind the final ELBO and the predictions.", ge=2)

    def run(self, device: torch.device, seed: int, say: Say) -> Outcome:
        """Fit both forms to every size of every problem, and once more with twice the steps."""
        sizes = self.counts()
        problems = [
            problem(self.units, sizes[-1], self.num_test, self.noise, mix(seed, "problem", n))
            for n in range(self.seeds)
        ]
        found: dict[tuple[str, int], list[Found]] = {}
        for size in sizes:
            for form in FORMS:
                say(f"N = {size}, {form}")
                found[form, size] = [
                    self.fit(form, size, p, self.epochs, device, mix(seed, "fit", n))
                    for n, p in enumerate(problems)
                ]
        most, longer = sizes[-1], {}  # where units take longest to go
        for form in FORMS:
            say(f"N = {most}, {form}, twice the steps")
            longer[form] = self.fit(
                form, most, problems[0], 2 * self.epochs, device, mix(seed, "fit", 0)
            )
        once = {form: found[form, most][0] for form in FORMS}
        return Outcome(
            [self.table(found), self.patience(once, longer, most)],
            self.figures(found, sizes),
            [*checks(found, sizes, self.units), converged(once, longer, most)],
        )

    def counts(self) -> list[int]:
        """The sizes, refused unless they rise."""
        try:
            sizes = [int(part) for part in self.sizes.split(",")]
        except ValueError:
            sizes = []
        if not sizes or sizes[0] < 2 or sizes != sorted(set(sizes)):
            raise SettingError(
                f"{self.name}: sizes={self.sizes!r}; expected rising whole numbers from 2, by "
                "commas, such as 50,200."
            )
        return sizes

    def fit(
        self, form: str, size: int, given: Problem, epochs: int, device: torch.device, seed: int
    ) -> Found:
        """One posterior and its numbers."""
        with isolated(mix(seed, "net")):
            net = mlp(2, (self.width,), 1, activation="tanh")
        train = (given.train[0][:size], given.train[1][:size])
        bnn, every = BNN(net, Gaussian(std=self.noise)), max(1, epochs // POINTS)

        def record_scales(row: dict[str, Any]) -> None:
            if row["epoch"] % every == 0:
                row["scales"] = scales_of(bnn).tolist()

        bnn.fit(
            train,
            "horseshoe",
            epochs=epochs,
            batch_size=size,
            lr=self.lr,
            seed=seed,
            device=device,
            progress=False,
            callbacks=[record_scales],
            centred=FORMS[form],
            scale_lr=self.scale_lr,
            kl_schedule="constant",
            lr_schedule="cosine",
            compile=graph_on(device),
        )
        scales = scales_of(bnn)
        p, y = (
            bnn.predict(given.test[0], num_samples=self.samples, seed=seed),
            given.test[1].to(device),
        )
        values = (
            bnn.objective(train, num_samples=self.samples, seed=seed)["elbo"] / size,
            bnn.history[-1][f"kept/{BANK}"],
            float(scales[0]),
            float(scales.median()),
            float((p.mean - y).square().mean().sqrt()),
            -float(p.log_prob(y).mean()),
            sum(row["seconds"] for row in bnn.history),
        )
        return Found(dict(zip(COLUMNS, values, strict=True)), bnn.history, scales.tolist())

    def table(self, found: dict[tuple[str, int], list[Found]]) -> Table:
        """Means over problems, with the deviation of the first two columns."""
        rows = []
        for (form, size), fits in found.items():
            cells: dict[str, Any] = {name: _over_problems(fits, name)[0] for name in COLUMNS}
            cells |= {
                name: "{:.3f} ± {:.3f}".format(*_over_problems(fits, name)) for name in COLUMNS[:2]
            }
            rows.append(Row(f"{form}, N = {size}", cells))
        note = (
            f"Means over {self.seeds} teachers of {self.units} units, ± the deviation between "
            f"them; the student has {self.width}. The truth has a "
            f"test rmse of {self.noise:g} and a test nll of "
            f"{0.5 * math.log(2 * math.pi * math.e * self.noise**2):.3f}. Scales: E[z] of hidden "
            "units."
        )
        return Table("Both forms", COLUMNS, rows, note)

    def patience(self, once: dict[str, Found], longer: dict[str, Found], size: int) -> Table:
        """What twice the steps change."""
        fits = [
            (f"{form}, {n} steps", one)
            for form in FORMS
            for n, one in ((self.epochs, once[form]), (2 * self.epochs, longer[form]))
        ]
        rows = [Row(label, one.numbers) for label, one in fits]
        return Table(f"Twice the steps, N = {size}, first teacher", COLUMNS, rows)

    def figures(
        self, found: dict[tuple[str, int], list[Found]], sizes: list[int]
    ) -> list[dict[str, Any]]:
        """The first problem over epochs; all problems over sizes."""
        out = []
        for size in sizes:
            fits = {form: found[form, size][0] for form in FORMS}
            elbo = {
                form: over_epochs(one.history, lambda row, size=size: row["elbo"] / size)
                for form, one in fits.items()
            }
            ends = [one.numbers[COLUMNS[0]] for one in fits.values()]
            room = max(1.0, max(ends) - min(ends))
            out.append(
                _curves(
                    f"ELBO, N = {size}",
                    "nats per point",
                    elbo,
                    y_range=[min(ends) - 3 * room, max(ends) + 0.3 * room],
                )
            )
            widths = {
                form: over_epochs(one.history, lambda row: row[f"kept/{BANK}"])
                for form, one in fits.items()
            }
            out.append(_curves(f"Kept width, N = {size}", "hidden units", widths))
            parts = {
                "largest": 0,
                "at the teacher's width": min(self.units, self.width) - 1,
                "median": self.width // 2,
            }
            over = {
                f"{form}, {name}": _scales(one.history, place)
                for form, one in fits.items()
                for name, place in parts.items()
            }
            out.append(_curves(f"Scales, N = {size}", "E[z]", over, log_y=True))
        ranks = list(range(1, self.width + 1))
        ends_at = {
            f"{form}, N = {size}": (ranks, found[form, size][0].scales)
            for form in FORMS
            for size in sizes
        }
        out.append(
            _curves("Scales at the end, sorted", "E[z]", ends_at, x_label="hidden unit", log_y=True)
        )
        widths = {
            form: (sizes, [_over_problems(found[form, size], COLUMNS[1])[0] for size in sizes])
            for form in FORMS
        }
        widths["teacher"] = (sizes, [float(self.units)] * len(sizes))
        out.append(
            _curves(
                "Kept width against data",
                "hidden units",
                widths,
                x_label="training points",
                log_x=True,
            )
        )
        return out


def _over_problems(fits: list[Found], name: str) -> tuple[float, float]:
    """Mean and standard deviation of a number of the table."""
    return mean_and_std([one.numbers[name] for one in fits])


def over_epochs(
    history: list[dict[str, Any]], value: Callable[[dict[str, Any]], float]
) -> tuple[list[float], list[float]]:
    """A number over epochs, averaged over stretches of them."""
    every = max(1, len(history) // POINTS)
    parts = [history[start : start + every] for start in range(0, len(history), every)]
    return [float(part[0]["epoch"]) for part in parts], [
        sum(map(value, part)) / len(part) for part in parts
    ]


def _scales(history: list[dict[str, Any]], place: int) -> tuple[list[float], list[float]]:
    rows = [row for row in history if "scales" in row]
    return [float(row["epoch"]) for row in rows], [row["scales"][place] for row in rows]


def _curves(
    title: str, y_label: str, data: dict[str, tuple[Any, Any]], x_label: str = "epoch", **more: Any
) -> dict[str, Any]:
    lines = [line(name, x, y, dash=name.startswith("non-")) for name, (x, y) in data.items()]
    return curves(title, x_label, y_label, lines) | more


def checks(found: dict[tuple[str, int], list[Found]], sizes: list[int], units: int) -> list[Check]:
    """What the literature says of the two forms, and of widths."""

    def mean(form: str, size: int, name: str) -> float:
        return _over_problems(found[form, size], name)[0]

    out = []
    for size in sizes:
        pairs = zip(found["non-centred", size], found["centred", size], strict=True)
        gains = torch.tensor(
            [a.numbers[COLUMNS[0]] - b.numbers[COLUMNS[0]] for a, b in pairs], dtype=torch.float64
        )
        told = (
            f"{float(gains.mean()):+.3f} nats per point, from {float(gains.min()):+.3f} to "
            f"{float(gains.max()):+.3f}"
        )
        out.append(
            Check(
                f"non-centred has the higher ELBO, N = {size}",
                told,
                "above 0",
                float(gains.mean()) > 0,
            )
        )
    for claim, name in (
        ("lets scales fall further", "median scale"),
        ("keeps no more units", "kept width"),
    ):
        pairs = [(mean("non-centred", size, name), mean("centred", size, name)) for size in sizes]
        holds = all(a < b if name == "median scale" else a <= b for a, b in pairs)
        told = "; ".join(f"{a:.3g} against {b:.3g}" for a, b in pairs)
        out.append(
            Check(
                f"non-centred {claim}",
                told,
                "lower at every N" if name == "median scale" else "at most, at every N",
                holds,
            )
        )
    for form in FORMS:
        widths = [mean(form, size, "kept width") for size in sizes]
        told = ", ".join(f"{w:.1f}" for w in widths)
        grows = all(a <= b for a, b in pairwise(widths))
        out.append(
            Check(
                f"kept width grows with the data, {form}",
                told,
                "never less than at a smaller N",
                grows,
            )
        )
        out.append(
            Check(
                f"kept width is near the teacher's, {form}",
                told,
                f"at most {2 * units}",
                max(widths) <= 2 * units,
            )
        )
    return out


def converged(once: dict[str, Found], longer: dict[str, Found], size: int) -> Check:
    """Whether the steps decide the comparison."""
    before, after = (
        {form: fits[form].numbers[COLUMNS[0]] for form in FORMS} for fits in (once, longer)
    )
    change, gap = (
        max(abs(after[form] - before[form]) for form in FORMS),
        abs(before["non-centred"] - before["centred"]),
    )
    told = f"twice the steps change an ELBO by {change:.3f}, the forms differ by {gap:.3f}"
    return Check(
        f"the fits have converged, N = {size}",
        told,
        "a change of at most a tenth of the difference",
        change <= 0.1 * gap,
    )
