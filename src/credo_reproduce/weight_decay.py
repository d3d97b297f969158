"""The role of weight decay in MC dropout: a prior too weak, right and too strong, on a function of
our own with known noise.

The tutorial shows three panels without saying their data. Here: y = sin(2 x) + 0.3 x + noise of
deviation 0.3, 30 inputs in [-3, -1] and [1, 3], none between. A decay stands for a prior N(0,
l^-2): with nn.Dropout(p) and the mean nll as loss it is l^2 / (N (1 - p)). l is chosen by the nll
of validation data and judged by that of test data, both over [-3, 3]. The network is tanh with
steep first-layer units (a gentle start hides a weak prior for as long as anyone trains), dropout
0.05 on both hidden layers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from credo.bnn import BNN
from credo.core.seeds import generator, isolated, mix
from credo.core.settings import setting
from credo.likelihoods import Gaussian
from credo.nets import mlp
from credo.posteriors import weight_decay
from credo_reproduce.base import Experiment, Say, experiments
from credo_reproduce.gal_co2_solar import Part, spread_out
from credo_reproduce.outcome import Check, Outcome, Row, Table
from credo_reproduce.plots import curves, line

NOISE, REACH, GAP = 0.3, 3.0, 1.0
SCALES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
STEEP = 10.0


class Data(NamedTuple):
    """Training data with a gap; validation and test data without one."""

    train: Part
    validation: Part
    test: Part


def truth(x: Tensor) -> Tensor:
    """The function without noise."""
    return torch.sin(2 * x) + 0.3 * x


def problem(num_train: int, num_held: int, seed: int) -> Data:
    """Training inputs of either sign outside the gap; held-out inputs everywhere."""

    def part(count: int, name: str, gap: float) -> Part:
        source = generator(seed, name)
        size = gap + (REACH - gap) * torch.rand(count, 1, generator=source)
        x = size * torch.tensor([1.0, -1.0]).repeat(math.ceil(count / 2))[:count].unsqueeze(1)
        return Part(x, truth(x) + NOISE * torch.randn(count, 1, generator=source))

    return Data(
        part(num_train, "train", GAP),
        part(num_held, "validation", 0.0),
        part(5 * num_held, "test", 0.0),
    )


@experiments.register("weight_decay")
@dataclass(frozen=True)
class WeightDecay(Experiment):
    """Length scales of the prior from too small to too large."""

    name: ClassVar[str] = "weight_decay"
    title: ClassVar[str] = "The role of weight decay in MC dropout, and functions drawn by dropout"
    reference: ClassVar[str] = (
        "Tutorial on MC dropout and concrete dropout; Gal and Ghahramani 2016 for the prior "
        "behind the decay."
    )
    cost: ClassVar[str] = "1 minute on one CPU core"
    quick_settings: ClassVar[dict[str, Any]] = {
        "num_data": 10,
        "num_held": 10,
        "hidden": 8,
        "epochs": 5,
        "sets": 2,
        "samples": 10,
    }

    num_data: int = setting(30, "Training points, half of them on either side of the gap.", ge=2)
    num_held: int = setting(
        100, "Validation points; there are five times as many test points.", ge=2
    )
    hidden: int = setting(100, "Units of each of the two hidden layers.", ge=1)
    p: float = setting(0.05, "Drop rate.", gt=0.0, le=0.999)
    epochs: int = setting(1500, "Steps on all data.", ge=1)
    lr: float = setting(1e-2, "Learning rate of Adam at the start; it falls to zero.", gt=0.0)
    sets: int = setting(3, "Data sets over which numbers are averaged; the first is drawn.", ge=1)
    samples: int = setting(200, "Posterior draws behind each number and band.", ge=2)
    functions: int = setting(15, "Functions drawn in a panel.", ge=1)

    def run(self, device: torch.device, seed: int, say: Say) -> Outcome:
        """Fit every length scale to every data set; draw the smallest, the best and the largest."""
        data = [problem(self.num_data, self.num_held, seed + place) for place in range(self.sets)]
        fits: dict[float, BNN] = {}
        found: dict[float, dict[str, float]] = {}
        for scale in SCALES:
            say(f"length scale {scale:g}")
            bnns = [self.fit(scale, one.train, device, seed) for one in data]
            numbers = [self.measure(bnn, one) for bnn, one in zip(bnns, data, strict=True)]
            means = {name: sum(row[name] for row in numbers) / len(numbers) for name in numbers[0]}
            found[scale] = {"weight decay": weight_decay(scale, self.p, self.num_data)} | means
            fits[scale] = bnns[0]
        good = min(SCALES, key=lambda scale: found[scale]["validation nll"])
        labels = {SCALES[0]: "too small", SCALES[-1]: "too large"} | {good: "good"}
        panels = [
            self.figure(f"{labels[scale]}: l = {scale:g}", fits[scale], data[0])
            for scale in SCALES
            if scale in labels
        ]
        rows = [
            Row(f"l = {scale:g}" + (f" ({labels[scale]})" if scale in labels else ""), values)
            for scale, values in found.items()
        ]
        note = (
            f"Nats per point, means over {self.sets} data sets; the true function with its noise "
            f"has {_floor():.3f}. weight decay: torch's, on "
            "the mean nll, for weights behind dropout. sd: of the function across draws, at the "
            "training inputs and for |x| < 1."
        )
        table = Table("Length scales", list(found[good]), rows, note)
        return Outcome([table], [*panels, _curve(found)], _checks(found, good))

    def fit(self, scale: float, train: Part, device: torch.device, seed: int) -> BNN:
        """MC dropout under one prior; network and start are the same for all."""
        with isolated(mix(seed, "net")):
            net = mlp(1, (self.hidden, self.hidden), 1, activation="tanh")
        spread_out(net, STEEP, REACH, seed)
        common = {
            "epochs": self.epochs,
            "batch_size": self.num_data,
            "lr": self.lr,
            "progress": False,
        }
        bnn = BNN(net, Gaussian(std=NOISE))
        return bnn.fit(
            train, "mc_dropout", p=self.p, length_scale=scale, seed=seed, device=device, **common
        )

    def measure(self, bnn: BNN, data: Data) -> dict[str, float]:
        """nll of the three parts, and the function's spread on the data and in the gap."""
        predictions = {
            name: bnn.predict(part.x, num_samples=self.samples)
            for name, part in data._asdict().items()
        }
        losses = {
            f"{name} nll": -float(p.log_prob(getattr(data, name).y).mean())
            for name, p in predictions.items()
        }
        middle = bnn.predict(torch.linspace(-GAP, GAP, 41).unsqueeze(1), num_samples=self.samples)
        sds = {"sd at the data": predictions["train"], "sd in the gap": middle}
        return losses | {name: float(p.epistemic.sqrt().mean()) for name, p in sds.items()}

    def figure(self, title: str, bnn: BNN, data: Data) -> dict[str, Any]:
        """Data, truth, mean, bands of two deviations, and functions drawn by dropout."""
        grid = torch.linspace(-REACH - 1, REACH + 1, 200).unsqueeze(1)
        p, drawn = bnn.predict(grid, num_samples=self.samples), bnn.functions(grid, self.functions)
        x, mean = grid[:, 0].tolist(), p.mean[:, 0].cpu()
        bands = []
        for name, variance, colour in (("total", p.total, -1), ("epistemic", p.epistemic, 0)):
            wide = 2 * variance[:, 0].sqrt().cpu()
            edges = {"lower": (mean - wide).tolist(), "upper": (mean + wide).tolist()}
            bands.append({"name": f"{name}, ± 2 sd", "x": x, "colour": colour} | edges)
        lines = [line("draw", x, f[:, 0].tolist(), faint=True, colour=5) for f in drawn.cpu()]
        lines += [
            line("mean", x, mean.tolist(), colour=0),
            line("truth", x, truth(grid)[:, 0].tolist(), dash=True, colour=-1),
        ]
        points = line("data", data.train.x[:, 0].tolist(), data.train.y[:, 0].tolist(), colour=1)
        return curves(
            title,
            "x",
            "y",
            lines,
            y_range=[-3.5, 3.5],
            bands=bands,
            points=[points],
            caption=f"Thin lines: {self.functions} functions drawn by dropout.",
        )


def _floor() -> float:
    """Expected nll of the true density: 1/2 log(2 pi e noise^2)."""
    return 0.5 * math.log(2 * math.pi * math.e * NOISE**2)


def _curve(found: dict[float, dict[str, float]]) -> dict[str, Any]:
    lines = [
        line(name, found, [row[f"{name} nll"] for row in found.values()], marks=True)
        for name in ("train", "validation", "test")
    ]
    return curves("nll against the length scale", "l", "nats per point", lines, log_x=True)


def _checks(found: dict[float, dict[str, float]], good: float) -> list[Check]:
    """The chosen scale is neither end, and is better than both on data that did not choose it."""
    best = found[good]["test nll"]
    out = [
        Check(
            "the best scale lies between",
            f"l = {good:g}",
            "neither the smallest nor the largest",
            good not in (SCALES[0], SCALES[-1]),
        )
    ]
    for label, scale in (("weak", SCALES[0]), ("strong", SCALES[-1])):
        other = found[scale]["test nll"]
        out.append(
            Check(
                f"a prior too {label} costs test nll",
                f"{best:.3f} against {other:.3f}",
                "lower at the chosen l",
                best < other,
            )
        )
    weak, right = found[SCALES[0]]["train nll"], found[good]["train nll"]
    out.append(
        Check(
            "a prior too weak overfits",
            f"train nll {weak:.3f} against {right:.3f}",
            "lower than at the chosen l",
            weak < right,
        )
    )
    return out
