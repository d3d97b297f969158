"""Learned drop rates against a grid of fixed ones, with more and more data (Gal, Hron and Kendall
2017, on MNIST).

A perceptron with two hidden layers under a prior N(0, l^-2) on 1,000, 10,000 and 60,000 images, its
input and both hidden layers dropped. Concrete dropout learns one rate per layer by the ELBO,
through the ARM gradient, which has no bias: the relaxation at temperature 0.1 underrates the noise
and ends at lower rates. The grid fits MC dropout at each of several rates, the same in all layers,
and takes the one with the lowest nll; for each half of the test images it is chosen on the other
half. Everything else is equal: steps, learning rate, prior, seeds, draws.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Normal

from credo.bnn import BNN
from credo.core.errors import SettingError
from credo.core.seeds import isolated, mix
from credo.core.settings import setting
from credo.nets import mlp
from credo_reproduce.base import Experiment, Say, experiments
from credo_reproduce.outcome import Check, Outcome, Row, Table
from credo_reproduce.plots import curves, line
from credo_reproduce.probes import images

START = 0.3  # where rates start
LAYERS = {"0.weight": "input", "2.weight": "first hidden layer", "4.weight": "second hidden layer"}


@experiments.register("dropout_rates")
@dataclass(frozen=True)
class DropoutRates(Experiment):
    """Rates by number of images, and what they are worth."""

    name: ClassVar[str] = "dropout_rates"
    title: ClassVar[str] = "Learned drop rates, with more data and against a grid search"
    reference: ClassVar[str] = "Gal, Hron and Kendall 2017, Concrete dropout."
    cost: ClassVar[str] = "15 minutes on one CPU core"
    needs: ClassVar[tuple[str, ...]] = ("mnist",)
    quick_settings: ClassVar[dict[str, Any]] = {
        "sizes": "100,300",
        "rates": "0.1,0.5",
        "steps": 20,
        "width": 20,
        "seeds": 1,
        "samples": 5,
        "num_test": 200,
    }

    sizes: str = setting("1000,10000,60000", "Training images, one block each.")
    rates: str = setting("0.1,0.2,0.3,0.4", "The grid of fixed rates.")
    layers: str = setting(
        "all",
        "Whose inputs are dropped: 'all' layers', or only the 'hidden' ones'.",
        choices=("all", "hidden"),
    )
    width: int = setting(200, "Units of the two hidden layers.", ge=1)
    length_scale: float = setting(1.0, "l of the prior N(0, l^-2).", gt=0.0)
    steps: int = setting(6_000, "Steps of every fit.", ge=1)
    batch: int = setting(128, "Examples in a step.", ge=1)
    lr: float = setting(1e-3, "Learning rate of Adam, falling along a cosine.", gt=0.0)
    seeds: int = setting(1, "Fits of everything.", ge=1)
    samples: int = setting(100, "Draws per prediction.", ge=2)
    num_test: int = setting(10_000, "Test images.", ge=1)

    def run(self, device: torch.device, seed: int, say: Say) -> Outcome:
        """Every size: the grid, then the learned rates."""
        train, test = images("mnist", device)
        test = (test[0][: self.num_test], test[1][: self.num_test])
        sizes, grid = [int(n) for n in _numbers("sizes", self.sizes)], _numbers("rates", self.rates)
        fixed: dict[int, dict[float, list[Tensor]]] = {n: {p: [] for p in grid} for n in sizes}
        nlls: dict[int, list[Tensor]] = {n: [] for n in sizes}
        learned: dict[int, list[dict[str, float]]] = {n: [] for n in sizes}
        histories: dict[int, list[dict[str, Any]]] = {}
        for place in range(self.seeds):
            for n in sizes:
                data = (train[0][:n], train[1][:n])
                for p in grid:
                    bnn = self._fit(data, "mc_dropout", seed + place, device, p=p)
                    fixed[n][p].append(self._nll(bnn, test)[0])
                    say(
                        f"seed {seed + place}, {n} images: p = {p:g}, nll "
                        f"{float(fixed[n][p][-1].mean()):.4f}"
                    )
                bnn = self._fit(
                    data,
                    "concrete_dropout",
                    seed + place,
                    device,
                    p=START,
                    gradient="arm",
                    rate_lr=3.0,
                )
                nll, error = self._nll(bnn, test)
                nlls[n].append(nll)
                rates = {
                    label: bnn.history[-1].get(f"rate/{name}") for name, label in LAYERS.items()
                }
                row = {label: rate for label, rate in rates.items() if rate is not None}
                row |= {"nll": float(nll.mean()), "error": error}
                learned[n].append(row)
                histories.setdefault(n, bnn.history)
                told = {p: f"{float(values[-1].mean()):.4f}" for p, values in fixed[n].items()}
                say(
                    f"seed {seed + place}, {n} images: learned "
                    f"{ ({k: round(v, 4) for k, v in row.items()}) }, grid {told}"
                )
        grids = {
            n: {p: torch.stack(values).mean(0) for p, values in cells.items()}
            for n, cells in fixed.items()
        }
        pairs = {n: (torch.stack(nlls[n]).mean(0), _chosen(grids[n])) for n in sizes}
        means = {
            n: {p: float(nll.mean()) for p, nll in cells.items()} for n, cells in grids.items()
        }
        return Outcome(
            [_learned(learned, means, pairs), _grid(means)],
            [
                *(_rates_over_epochs(n, rows) for n, rows in histories.items()),
                _valley(means, learned),
            ],
            _checks(learned, pairs),
        )

    def _fit(
        self,
        data: tuple[Tensor, Tensor],
        method: str,
        seed: int,
        device: torch.device,
        **settings: Any,
    ) -> BNN:
        with isolated(mix(seed, "net")):
            net = mlp(784, (self.width, self.width), 10)
        per_epoch = -(-len(data[1]) // self.batch)
        common = {
            "epochs": max(self.steps // per_epoch, 1),
            "batch_size": self.batch,
            "lr": self.lr,
            "progress": False,
        }
        bnn = BNN(net, prior=Normal(0.0, 1.0 / self.length_scale))
        return bnn.fit(
            data,
            method,
            seed=seed,
            device=device,
            compile=device.type == "cuda",
            layers=self.layers,
            **common,
            **settings,
        )

    def _nll(self, bnn: BNN, test: tuple[Tensor, Tensor]) -> tuple[Tensor, float]:
        """nll of every test image, and the error in per cent."""
        p = bnn.predict(test[0], self.samples, batch_size=2000)
        return -p.log_prob(test[1]).double().cpu(), 100.0 * float(
            (p.label != test[1]).double().mean()
        )


def _numbers(name: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise SettingError(
            f"{name}={text!r}; expected numbers with commas, e.g. '0.1,0.5'."
        ) from None


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _chosen(cells: dict[float, Tensor]) -> Tensor:
    """nll of every image at the rate that is best on the other half of them."""
    rows = torch.arange(len(next(iter(cells.values())))) % 2 == 0
    best = {
        half: min(cells.values(), key=lambda nll, half=half: float(nll[rows != half].mean()))
        for half in (True, False)
    }
    return torch.where(rows, best[True], best[False])


def _layers(learned: dict[int, list[dict[str, float]]]) -> list[str]:
    """The layers whose rates were learned."""
    fits = next(iter(learned.values()))
    return [label for label in LAYERS.values() if label in fits[0]]


def _learned(
    learned: dict[int, list[dict[str, float]]],
    fixed: dict[int, dict[float, float]],
    pairs: dict[int, tuple[Tensor, Tensor]],
) -> Table:
    rows = []
    for n, fits in learned.items():
        ours = {key: _mean([fit[key] for fit in fits]) for key in fits[0]}
        best = min(fixed[n], key=lambda p: fixed[n][p])
        rows.append(
            Row(
                f"{n:,} images",
                ours | {"best fixed rate": best, "grid search, nll": float(pairs[n][1].mean())},
            )
        )
    note = "Rates, test nll in nats per image and error in per cent, means over seeds."
    return Table("Concrete dropout", list(rows[0].measured), rows, note, digits=4)


def _grid(fixed: dict[int, dict[float, float]]) -> Table:
    columns = [f"p = {p:g}" for p in next(iter(fixed.values()))]
    rows = [
        Row(f"{n:,} images", {f"p = {p:g}": nll for p, nll in cells.items()})
        for n, cells in fixed.items()
    ]
    return Table(
        "MC dropout: test nll at fixed rates",
        columns,
        rows,
        "Nats per image, means over seeds.",
        digits=4,
    )


def _rates_over_epochs(n: int, rows: list[dict[str, Any]]) -> dict[str, Any]:
    epochs = [row["epoch"] + 1 for row in rows]
    seen = {name: label for name, label in LAYERS.items() if f"rate/{name}" in rows[0]}
    lines = [
        line(label, epochs, [row[f"rate/{name}"] for row in rows]) for name, label in seen.items()
    ]
    return curves(f"Drop rates while learning, {n:,} images", "epoch", "drop rate", lines)


def _valley(
    fixed: dict[int, dict[float, float]], learned: dict[int, list[dict[str, float]]]
) -> dict[str, Any]:
    lines, points = [], []
    for place, (n, cells) in enumerate(fixed.items()):
        lines.append(line(f"{n:,} images, fixed", cells, cells.values(), marks=True, colour=place))
        x = [_mean([fit[label] for fit in learned[n]]) for label in _layers(learned)]
        nll = _mean([fit["nll"] for fit in learned[n]])
        points.append(line(f"{n:,} images, learned", x, [nll] * len(x), colour=place))
    return curves(
        "Test nll by drop rate",
        "drop rate",
        "nll, nats per image",
        lines,
        points=points,
        caption="Learned rates, one per layer, are drawn at the nll of their fit.",
    )


def _checks(
    learned: dict[int, list[dict[str, float]]], pairs: dict[int, tuple[Tensor, Tensor]]
) -> list[Check]:
    sizes, out = list(learned), []
    for label in _layers(learned):
        rates = [_mean([fit[label] for fit in learned[n]]) for n in sizes]
        falls = all(b < a for a, b in itertools.pairwise(rates))
        out.append(
            Check(
                f"rate: {label}",
                " → ".join(f"{r:.3f}" for r in rates),
                "lower with more images",
                falls,
            )
        )
    for n in sizes:
        ours, theirs = pairs[n]
        gap = ours - theirs
        mean, error = float(gap.mean()), float(gap.std()) / math.sqrt(len(gap))
        told = (
            f"{float(ours.mean()):.4f} against {float(theirs.mean()):.4f} (difference {mean:+.4f} "
            f"± {error:.4f})"
        )
        out.append(
            Check(f"nll with {n:,} images", told, "at most that of the grid search", mean <= 0.0)
        )
    return out
