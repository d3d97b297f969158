"""Regression between two clusters (Li's tutorial on Bayesian neural networks): mean-field VI, a Bayesian last layer, a point estimate.

y = sin(pi x / 2 + 0.8) exp(-0.1 |x|) + 0.1 x + noise of deviation 0.1 at 50 inputs from N(2, 0.5^2) and 50 from N(-2, 0.5^2); inputs and
targets are standardised. GELU network 50-50, weights N(0, 1) a priori, one weight draw per step, Adam at 1e-3 for 2,000 steps on all data,
posterior deviations starting at 0.05 and the noise at exp(-3/2), as in the tutorial's notebook. The notebook's random data are not
known, so learned noise can only agree up to sampling error.
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
from credo.experiments.base import Experiment, Say, experiments
from credo.experiments.outcome import Check, Outcome, Row, Table
from credo.likelihoods import Gaussian
from credo.nets import mlp

NOISE = 0.1
# Two standard errors of the difference of two deviations, each estimated from 100 points: 2 * sqrt(2) * 0.12 / sqrt(200).
TOLERANCE = 0.024


class Kind(NamedTuple):
    """A panel: its label, the method with its settings, and the noise the tutorial reports."""

    label: str
    method: str
    settings: dict[str, Any]
    noise: float | None


KINDS = (
    Kind("mean-field VI", "vi", {"estimator": "weights", "init_std": 0.05}, 0.121),
    Kind("last layer, full covariance", "last_layer", {"init_std": 0.05}, 0.129),
    Kind("point estimate (MAP)", "map", {}, None),
)


class Clusters(NamedTuple):
    """Standardised data ``(N, 1)``, and the numbers that undo it."""

    x: Tensor
    y: Tensor
    x_mean: float
    x_std: float
    y_mean: float
    y_std: float

    def inputs(self, x: Tensor) -> Tensor:
        """Inputs ``(N,)`` in the data's units as the network takes them."""
        return ((x - self.x_mean) / self.x_std).unsqueeze(1)


def truth(x: Tensor) -> Tensor:
    """The function without noise."""
    return torch.sin(math.pi * x / 2 + 0.8) * torch.exp(-0.1 * x.abs()) + 0.1 * x


def clusters(num_data: int, seed: int) -> Clusters:
    """Half of the inputs around 2, half around -2."""
    source = generator(seed, "clusters")
    half = num_data // 2
    x = 0.5 * torch.randn(num_data, generator=source) + torch.tensor([2.0, -2.0]).repeat_interleave(half)
    y = truth(x) + NOISE * torch.randn(num_data, generator=source)
    x_mean, x_std, y_mean, y_std = (float(v) for v in (x.mean(), x.std(correction=0), y.mean(), y.std(correction=0)))
    scaled_x, scaled_y = ((x - x_mean) / x_std).unsqueeze(1), ((y - y_mean) / y_std).unsqueeze(1)
    return Clusters(scaled_x, scaled_y, x_mean, x_std, y_mean, y_std)


@experiments.register("li_regression")
@dataclass(frozen=True)
class LiRegression(Experiment):
    """Learned noise and uncertainty between two clusters of inputs."""

    name: ClassVar[str] = "li_regression"
    title: ClassVar[str] = "Regression between two clusters: learned noise and uncertainty"
    reference: ClassVar[str] = "Li, Introduction to Bayesian neural networks (tutorial), part II."
    cost: ClassVar[str] = "20 seconds on one CPU core"

    num_data: int = setting(100, "Points, half of them in each cluster.", ge=4)
    epochs: int = setting(2000, "Steps on all data.", ge=1)
    samples: int = setting(200, "Posterior draws behind each band.", ge=2)

    def run(self, device: torch.device, seed: int, say: Say) -> Outcome:
        """Fit the three, and read off noise and spread."""
        me = LiRegression(True, 20, 20, 10) if self.quick else self
        data = clusters(me.num_data // 2 * 2, seed)
        low, high = float(data.x.min()) * data.x_std + data.x_mean - 1, float(data.x.max()) * data.x_std + data.x_mean + 1
        grid = torch.linspace(low, high, 200)
        rows, figures, checks = [], [], []
        for kind in KINDS:
            say(f"fitting {kind.label}")
            bnn = me.fit(kind, data, device, seed)
            noise = float(bnn.likelihood.log_std.detach().exp()) * data.y_std  # type: ignore[operator]
            spread = {name: me.spread(bnn, data, points) for name, points in PLACES.items()}
            rows.append(Row(kind.label, {"learned noise": noise} | spread, {"learned noise": kind.noise}))
            figures.append(me.figure(kind.label, bnn, data, grid))
            if kind.noise is not None:
                told = f"{noise:.3f} (tutorial {kind.noise})"
                close = abs(noise - kind.noise) < TOLERANCE
                checks.append(Check(f"noise of {kind.label}", told, f"tutorial's within {TOLERANCE}", close))
                ratio = spread["sd in the gap"] / spread["sd on the clusters"]
                checks.append(Check(f"{kind.label}: wider in the gap", f"{ratio:.1f} times", "above 1", ratio > 1.0))
        note = f"True noise {NOISE}; sd: deviation of the function across draws, at x = 0 and averaged over x = -2 and 2."
        return Outcome([Table("Learned noise and spread", list(rows[0].measured), rows, note)], figures, checks)

    def fit(self, kind: Kind, data: Clusters, device: torch.device, seed: int) -> BNN:
        """One method by the tutorial's recipe."""
        with isolated(mix(seed, "net")):
            net = mlp(1, (50, 50), 1, activation="gelu")
        bnn = BNN(net, Gaussian(initial_std=math.exp(-1.5)))
        common = {"epochs": self.epochs, "batch_size": self.num_data, "lr": 1e-3, "lr_schedule": "constant", "progress": False}
        return bnn.fit((data.x, data.y), kind.method, seed=seed, device=device, **common, **kind.settings)

    def spread(self, bnn: BNN, data: Clusters, points: tuple[float, ...]) -> float:
        """Deviation of the function across draws in the data's units, averaged over ``points``."""
        p = bnn.predict(data.inputs(torch.tensor(points)), samples=self.samples)
        return float(p.epistemic.sqrt().mean()) * data.y_std

    def figure(self, label: str, bnn: BNN, data: Clusters, grid: Tensor) -> dict[str, Any]:
        """Data, truth, mean, bands of two deviations, and ten functions."""
        inputs, scale = data.inputs(grid), data.y_std
        p = bnn.predict(inputs, samples=self.samples)
        x, mean = grid.tolist(), p.mean[:, 0].cpu() * scale + data.y_mean
        deviations = {"total": p.total, "epistemic": p.epistemic}
        bands = []
        for place, (name, variance) in enumerate(deviations.items()):
            wide = 2 * variance[:, 0].sqrt().cpu() * scale
            edges = {"lower": (mean - wide).tolist(), "upper": (mean + wide).tolist()}
            bands.append({"name": f"{name}, ± 2 sd", "x": x, "colour": 0 if place else -1} | edges)
        drawn = bnn.functions(inputs, 10)[:, :, 0].cpu() * scale + data.y_mean
        lines = [{"name": "draw", "x": x, "y": f.tolist(), "faint": True, "colour": 5} for f in drawn]
        lines += [
            {"name": "mean", "x": x, "y": mean.tolist(), "colour": 0},
            {"name": "truth", "x": x, "y": truth(grid).tolist(), "dash": True, "colour": -1},
        ]
        points = {"x": (data.x[:, 0] * data.x_std + data.x_mean).tolist(), "y": (data.y[:, 0] * scale + data.y_mean).tolist()}
        return {
            "kind": "curves", "title": label, "x_label": "x", "y_label": "y", "y_range": [-2.5, 2.5], "bands": bands, "lines": lines,
            "points": [{"name": "data", "colour": 1} | points], "caption": "Thin lines: ten functions drawn from the posterior.",
        }  # fmt: skip


PLACES = {"sd in the gap": (0.0,), "sd on the clusters": (-2.0, 2.0)}
