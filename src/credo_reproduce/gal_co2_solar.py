"""Gal and Ghahramani's figures: MC dropout continues the CO2 record of Mauna Loa, and fills gaps in
a record of the sun's radiance.

Paper: 4 or 5 hidden layers of 1024 units, dropout 0.1 or 0.2 on every hidden layer, ReLU or tanh, a
weight decay of about 1e-6, a million steps on a GPU. Here 4 layers of 256 units, dropout 0.1 and a
few thousand Adam steps; the noise is learned, and the same decay enters as the length scale of the
prior. So short a training does not find the yearly cycle (0.15 wide at inputs from -1.7 to 1.7)
from the usual start, so first-layer units start steep, and switch at places spread over the data.
That serves tanh; ReLU has no scale, and follows the trend alone; how far it rises or falls beyond
the data then differs from seed to seed.

The labels that come with the CO2 test inputs are a constant, not measurements. The record itself
can be had: the training labels are monthly means of the weekly record, rows without data left out,
minus their least-squares line, over their deviation. The same three steps give what came after,
which is what continuations are scored against; a check says how well they give the training labels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from credo.bnn import BNN
from credo.core.seeds import generator, isolated, mix
from credo.core.settings import setting
from credo.data import load
from credo.likelihoods import Gaussian
from credo.nets import mlp
from credo.posteriors import length_scale
from credo_reproduce.base import Experiment, Say, experiments
from credo_reproduce.outcome import Check, Outcome, Row, Table
from credo_reproduce.plots import band, curves, line

DECAY = 1e-6  # of the authors' ReLU network for CO2
# deviations: labels and rebuilt record must be this close, root mean square, for the continuation
# to be scored
AGREE = 0.1
# share of the sun's held-out points that two deviations shall hold (0.95 under a true model)
INSIDE = 0.8
BANDS = (2.0, 1.5, 1.0, 0.5)


class Part(NamedTuple):
    """Inputs and labels ``(N, 1)``."""

    x: Tensor
    y: Tensor


class Kind(NamedTuple):
    """A fit: its label, the data set, the nonlinearity, and the labels that its figure shows."""

    label: str
    data: str
    activation: str
    shown: tuple[float, float]


KINDS = (
    Kind("CO2, ReLU", "co2", "relu", (-4.0, 12.0)),
    Kind("CO2, tanh", "co2", "tanh", (-4.0, 12.0)),
    Kind("solar, ReLU", "solar", "relu", (-3.0, 4.0)),
)


def record(weeks: dict[str, np.ndarray], num_train: int) -> np.ndarray:
    """Labels of all months with data, the first ``num_train`` of them as in training: means, less a
    line, over the deviation.
    """
    known = ~np.isnan(weeks["co2"])
    months = weeks["date"][known].astype("datetime64[D]").astype("datetime64[M]").astype(int)
    _, place, count = np.unique(months, return_inverse=True, return_counts=True)
    means = np.bincount(place, weeks["co2"][known]) / count
    rows = np.arange(len(means))
    line = np.polyfit(rows[:num_train], means[:num_train], 1)
    left = means - np.polyval(line, rows)
    return left / left[:num_train].std()


def later(train: Part, labels: np.ndarray, end: float) -> Part:
    """The record behind the training months, up to the input ``end``."""
    first, step = float(train.x[0]), float(train.x[1] - train.x[0])
    x = first + step * torch.arange(len(labels))
    keep = (x > float(train.x[-1]) + step / 2) & (x <= end)
    return Part(x[keep].unsqueeze(1), torch.as_tensor(labels).float()[keep].unsqueeze(1))


@experiments.register("gal_co2_solar")
@dataclass(frozen=True)
class GalCO2Solar(Experiment):
    """Uncertainty of MC dropout far from the data (CO2) and between them (solar)."""

    name: ClassVar[str] = "gal_co2_solar"
    title: ClassVar[str] = "MC dropout beyond and between the data: CO2 and solar irradiance"
    reference: ClassVar[str] = (
        "Gal and Ghahramani 2016, Dropout as a Bayesian approximation, section 5.1 and appendix."
    )
    cost: ClassVar[str] = "90 seconds on one CPU core"
    needs: ClassVar[tuple[str, ...]] = ("gal_co2_solar", "co2_mauna_loa_weekly")
    quick_settings: ClassVar[dict[str, Any]] = {
        "hidden": 16,
        "depth": 2,
        "epochs": 3,
        "samples": 10,
    }

    hidden: int = setting(256, "Units of each hidden layer; the paper has 1024.", ge=1)
    depth: int = setting(4, "Hidden layers; the paper has 4 or 5.", ge=1)
    p: float = setting(0.1, "Drop rate.", gt=0.0, le=0.999)
    steep: float = setting(30.0, "Size of the first layer's weights at the start.", gt=0.0)
    epochs: int = setting(1500, "Passes over the data, four batches each.", ge=1)
    lr: float = setting(1e-3, "Learning rate of Adam at the start; it falls to zero.", gt=0.0)
    samples: int = setting(200, "Posterior draws behind each band; the paper has 1000.", ge=2)

    def run(self, device: torch.device, seed: int, say: Say) -> Outcome:
        """Fit the three, then look right of the CO2 data and into the gaps of the sun's."""
        data = {key: torch.as_tensor(value).float() for key, value in load("gal_co2_solar").items()}
        trains = {
            name: Part(data[f"{name}_train_data"], data[f"{name}_train_label"])
            for name in ("co2", "solar")
        }
        gaps = Part(data["solar_test_data"], data["solar_test_label"])
        grid = data["co2_test_data"]  # its labels are no measurements
        whole = record(load("co2_mauna_loa_weekly"), len(trains["co2"].y))
        away = trains["co2"].y[:, 0].numpy() - whole[: len(trains["co2"].y)]
        distance = float(np.sqrt(np.square(away).mean()))
        held_out = {
            "co2": later(trains["co2"], whole, float(grid.max())) if distance < AGREE else None,
            "solar": gaps,
        }
        rows, figures, found = [], [], {}
        for kind in KINDS:
            say(f"fitting {kind.label}")
            bnn = self.fit(kind, trains[kind.data], device, seed)
            found[kind.label] = numbers = self.measure(bnn, trains[kind.data], held_out[kind.data])
            if kind.data == "co2":
                numbers["sd at the far end"] = self.far_std(bnn, grid[-1:])
                numbers["growth"] = numbers["sd at the far end"] / numbers["sd on the data"]
            rows.append(Row(kind.label, numbers))
            figures.append(self.figure(kind, bnn, trains[kind.data], held_out[kind.data]))
        note = (
            "In units of the standardised labels. sd: of the function across draws, without "
            "noise. Held out: the months after the training "
            f"data (to input {float(grid.max()):.2f}), the sun's five gaps; within 2 sd: noise "
            "included."
        )
        columns = [
            "learned noise",
            "train rmse",
            "sd on the data",
            "sd at the far end",
            "growth",
            "held-out rmse",
            "within 2 sd",
        ]
        checks = [
            Check(
                "the record gives the labels",
                f"rms difference {distance:.3f}",
                f"below {AGREE}",
                distance < AGREE,
            )
        ]
        sd = float(trains["solar"].y.std(correction=0))
        return Outcome(
            [Table("Fits", columns, rows, note)],
            figures,
            [*checks, *_checks(found, sd)],
            [_told(held_out["co2"], self)],
        )

    def fit(self, kind: Kind, train: Part, device: torch.device, seed: int) -> BNN:
        """MC dropout with learned noise."""
        with isolated(mix(seed, "net")):
            net = mlp(1, [self.hidden] * self.depth, 1, activation=kind.activation)
        spread_out(net, self.steep, float(train.x.abs().max()), seed)
        bnn = BNN(net, Gaussian(initial_std=1.0))
        common = {
            "epochs": self.epochs,
            "batch_size": math.ceil(len(train.y) / 4),
            "lr": self.lr,
            "progress": False,
        }
        prior = length_scale(DECAY, self.p, len(train.y))
        return bnn.fit(
            train, "mc_dropout", p=self.p, length_scale=prior, seed=seed, device=device, **common
        )

    def far_std(self, bnn: BNN, x: Tensor) -> float:
        """Deviation of the function across draws, averaged over ``x``."""
        return float(bnn.predict(x, num_samples=self.samples).epistemic.sqrt().mean())

    def measure(self, bnn: BNN, train: Part, held_out: Part | None) -> dict[str, float]:
        """Noise, fit and spread on the data, and scores on what was held out."""
        p = bnn.predict(train.x, num_samples=self.samples)
        out = {
            "learned noise": float(bnn.likelihood.log_std.detach().exp()),  # type: ignore[operator]
            "train rmse": float((p.mean.cpu() - train.y).square().mean().sqrt()),
            "sd on the data": float(p.epistemic.sqrt().mean()),
        }
        if held_out is not None:
            p = bnn.predict(held_out.x, num_samples=self.samples)
            error, wide = p.mean.cpu() - held_out.y, p.total.sqrt().cpu()
            inside = float((error.abs() <= 2 * wide).double().mean())
            out |= {"held-out rmse": float(error.square().mean().sqrt()), "within 2 sd": inside}
        return out

    def figure(self, kind: Kind, bnn: BNN, train: Part, held_out: Part | None) -> dict[str, Any]:
        """Mean and bands of the function, a band of the observations, training data and what was
        held out.
        """
        right = 0.1 if held_out is None else max(0.1, float(held_out.x.max() - train.x.max()))
        grid = torch.linspace(
            float(train.x.min()) - 0.1, float(train.x.max()) + right, 400
        ).unsqueeze(1)
        p = bnn.predict(grid, num_samples=self.samples)
        x, mean = grid[:, 0].tolist(), p.mean[:, 0].cpu()
        sd, total = (v[:, 0].sqrt().cpu() for v in (p.epistemic, p.total))
        widths = {"observation, ± 2 sd": (2 * total, -1)} | {
            f"function, ± {k:g} sd": (k * sd, 0) for k in BANDS
        }
        bands = [
            band(name, x, (mean - wide).tolist(), (mean + wide).tolist(), colour=colour)
            for name, (wide, colour) in widths.items()
        ]
        points = [line("training data", train.x[:, 0].tolist(), train.y[:, 0].tolist(), colour=3)]
        if held_out is not None:
            points.append(
                line("held out", held_out.x[:, 0].tolist(), held_out.y[:, 0].tolist(), colour=1)
            )
        return curves(
            kind.label,
            "input, standardised",
            "label, standardised",
            [line("mean", x, mean.tolist(), colour=0)],
            bands=bands,
            points=points,
            y_range=kind.shown,
            caption="Bands in shades: the function, half a deviation each; grey: with the noise.",
        )


@torch.no_grad()
def spread_out(net: nn.Sequential, size: float, half_width: float, seed: int) -> None:
    """First-layer weights of about ``size`` and either sign, with biases that put -b / w uniformly
    on [-half_width, half_width].
    """
    first, source = net[0], generator(seed, "first layer")
    assert isinstance(first, nn.Linear)
    shape = (first.out_features, 1)
    signs = torch.where(torch.rand(shape, generator=source) < 0.5, -1.0, 1.0)
    first.weight.copy_(signs * size * (0.5 + torch.rand(shape, generator=source)))
    first.bias.copy_(
        -first.weight[:, 0]
        * half_width
        * (2 * torch.rand(first.out_features, generator=source) - 1)
    )


def _checks(found: dict[str, dict[str, float]], sd: float) -> list[Check]:
    """Growth to the right with ReLU, none to speak of with tanh, and gaps filled."""
    relu, tanh, solar = (found[kind.label] for kind in KINDS)
    far = f"{tanh['sd at the far end']:.3f} against {relu['sd at the far end']:.3f}"
    share, error = solar["within 2 sd"], solar["held-out rmse"]
    return [
        Check(
            "ReLU grows unsure to the right",
            f"{relu['growth']:.1f} times the sd on the data",
            "above 2",
            relu["growth"] > 2.0,
        ),
        Check(
            "tanh surer than ReLU at the far end",
            far,
            "smaller",
            tanh["sd at the far end"] < relu["sd at the far end"],
        ),
        Check(
            "tanh grows less",
            f"{tanh['growth']:.1f} times",
            "less than ReLU",
            tanh["growth"] < relu["growth"],
        ),
        Check(
            "the sun's gaps are filled",
            f"rmse {error:.3f}",
            f"below the labels' deviation {sd:.2f}",
            error < sd,
        ),
        Check("gap points within 2 sd", f"{share:.2f}", f"at least {INSIDE}", share >= INSIDE),
    ]


def _told(held_out: Part | None, settings: GalCO2Solar) -> str:
    size = (
        f"{settings.depth} hidden layers of {settings.hidden} units and {4 * settings.epochs} "
        "steps; the paper 1024 units and a million."
    )
    if held_out is None:
        return (
            f"{size} The weekly record does not give the CO2 labels, so the continuation is not "
            "scored."
        )
    return (
        f"{size} CO2 is scored on {len(held_out.y)} later months of the weekly record, brought to "
        "the labels' scale."
    )
