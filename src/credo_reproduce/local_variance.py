"""Variance of minibatch gradients under four kinds of noise, and what separate weight samples cost
(Kingma et al. 2015).

A perceptron is trained with local noise by variational dropout with independent weight noise: w = W
s, s ~ N(1, alpha), one alpha below 1 per weight, under the log-uniform prior; biases are points.
Then, at the same posterior, gradients of (N / M) sum log p(y given x, w) for the weights of the
bottom and the top layer are drawn again and again, over minibatches of M = 1000 and over noise, and
their variance is averaged over the weights of the layer. Pairs of independent gradients give
unbiased estimates, ||g - g'||^2 / (2 D), and so a standard error. The difference between local and
separate samples lies in the noise's dependence on the weights: were the deviation a parameter of
its own, both would give the top layer's means the same gradients.
"""

from __future__ import annotations

import copy
import math
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple, final

import torch
from torch import Tensor

from credo.bnn import BNN
from credo.core.seeds import generator, isolated, mix
from credo.core.settings import setting
from credo.engine.elbo import Elbo
from credo.engine.step import adam, make_step
from credo.estimators import estimators
from credo.nets import mlp
from credo.posteriors import GaussianDropout, Places, Posterior
from credo.priors import log_uniform
from credo_reproduce.base import Experiment, Say, experiments
from credo_reproduce.outcome import Check, Outcome, Row, Table
from credo_reproduce.probes import images, minibatches

LAYERS = ("top", "bottom")
SPEEDUP = 1635.0 / 7.4


class Kind(NamedTuple):
    """A row of the table: the estimator, whether there is noise, and the paper."""

    label: str
    estimator: str
    noise: bool
    paper: dict[tuple[str, int], float]  # (layer, 0 for 10 epochs or 1 for 100)


def _paper(top: tuple[float, float], bottom: tuple[float, float]) -> dict[tuple[str, int], float]:
    return {
        (layer, place): value
        for layer, pair in (("top", top), ("bottom", bottom))
        for place, value in enumerate(pair)
    }


KINDS = (
    Kind("local", "local", True, _paper((7.8e3, 1.2e3), (1.9e2, 1.1e2))),
    Kind("separate samples", "per_example", True, _paper((1.4e4, 2.6e3), (4.3e2, 2.5e2))),
    Kind("single sample", "weights", True, _paper((4.9e4, 4.3e3), (8.5e2, 3.3e2))),
    Kind("no noise", "weights", False, _paper((2.8e3, 5.9e1), (1.3e2, 9.0))),
)


@final
class WeightNoise:
    """A perceptron under variational dropout with noise on weights, and gradients of the nll for W
    under any estimator.
    """

    def __init__(
        self,
        sizes: tuple[int, ...],
        alpha: float,
        lr: float,
        rate_lr: float,
        num_data: int,
        device: torch.device,
    ) -> None:
        self.model = BNN(
            mlp(sizes[0], sizes[1:-1], sizes[-1]).to(device), "categorical", prior=log_uniform()
        ).model
        values = self.model.values()
        axes = {name: (1, 1) for name in values if name.endswith("weight")}
        rates = dict.fromkeys(axes, alpha / (1 + alpha))
        self.family = GaussianDropout.start(
            values, Places(axes), rates, noise="weight", per="weight", learn=True
        )
        self.elbo = Elbo(self.model, Posterior([self.family]), estimators["local"])
        self.step = make_step(self.elbo, adam(self.elbo, lr, num_data, rate_lr), num_data, False)
        self.model.shell().train(True)

    def train(self, x: Tensor, y: Tensor, epochs: int, batch: int, order: torch.Generator) -> float:
        """Adam on nll / M + KL / N with local noise.

        Returns the last epoch's nll in nats per example.
        """
        nll = torch.zeros((), device=x.device)
        for _ in range(epochs):
            nll = torch.zeros_like(nll)
            for rows in torch.randperm(len(y), generator=order).to(y.device).split(batch):
                nll += self.step(x[rows], y[rows], 1.0)[0]
        return float(nll) / len(y)

    def probe(self, estimator: str, noise: bool) -> Elbo:
        """The nll under an estimator, at a copy of the posterior; without noise alpha is zero."""
        family = copy.deepcopy(self.family)
        if not noise:
            for raw in family.raw_alpha:
                raw.data.fill_(-math.inf)
        return Elbo(self.model, Posterior([family]), estimators[estimator], kl="optimizer")

    @torch.no_grad()
    def error(self, x: Tensor, y: Tensor) -> float:
        """Share of wrong labels of the network at W."""
        shell = self.model.shell()
        shell.place(self.family.mean())
        return float((shell(x).argmax(1) != y).double().mean())


def gradient(elbo: Elbo, x: Tensor, y: Tensor, rows: int | None = None) -> Tensor:
    """Of the summed nll for W, ``rows`` examples at a time, which is exact only where examples do
    not share their noise.
    """
    (family,) = elbo.posterior.factors
    assert isinstance(family, GaussianDropout)
    total = torch.zeros_like(family.flat_mean)
    for part_x, part_y in zip(x.split(rows or len(y)), y.split(rows or len(y)), strict=True):
        total += torch.autograd.grad(elbo(part_x, part_y)[0], family.flat_mean)[0]
    return total


class Estimate(NamedTuple):
    """A variance and its standard error."""

    value: float
    error: float


@experiments.register("local_variance")
@dataclass(frozen=True)
class LocalVariance(Experiment):
    """Gradient variance and speed of local noise against separate and single weight samples."""

    name: ClassVar[str] = "local_variance"
    title: ClassVar[str] = "Local reparameterization: gradient variance and speed"
    reference: ClassVar[str] = (
        "Kingma, Salimans and Welling 2015, Variational dropout and the local reparameterization "
        "trick."
    )
    cost: ClassVar[str] = (
        "3 minutes on one H200; hours on a CPU unless hidden and pairs are made smaller"
    )
    needs: ClassVar[tuple[str, ...]] = ("mnist",)
    threads: ClassVar[int | None] = None
    quick_settings: ClassVar[dict[str, Any]] = {
        "hidden": 16,
        "depth": 2,
        "short": 1,
        "long": 2,
        "batch": 50,
        "num_data": 500,
        "pairs": 4,
        "separate_pairs": 4,
        "chunk": 25,
        "steps": 2,
    }

    hidden: int = setting(1000, "Units of each hidden layer.", ge=1)
    depth: int = setting(3, "Hidden layers.", ge=1)
    short: int = setting(10, "Epochs before the first measurement.", ge=1)
    long: int = setting(100, "Epochs before the second.", ge=1)
    batch: int = setting(1000, "Examples in a minibatch, in training and in the measurement.", ge=1)
    lr: float = setting(1e-3, "Learning rate.", gt=0.0)
    rate_lr: float = setting(10.0, "Learning rate of alpha, as a multiple of the weights'.", gt=0.0)
    alpha: float = setting(
        0.5, "Initial ratio of variance to squared mean of every weight.", gt=0.0, le=0.999
    )
    num_data: int = setting(50_000, "Training images.", ge=1)
    pairs: int = setting(100, "Pairs of gradients per estimate.", ge=2)
    separate_pairs: int = setting(20, "The same for separate samples, the slow one.", ge=2)
    chunk: int | None = setting(
        None,
        "Examples at a time under separate samples; batch on a GPU, 20 on a CPU, if not given.",
        ge=1,
        kind=int,
    )
    steps: int = setting(20, "Steps timed, after three to warm up.", ge=1)

    def run(self, device: torch.device, seed: int, say: Say) -> Outcome:
        """Train, measure four kinds of noise at two points of the way, then time a step."""
        train, test = images("mnist", device, self.num_data)
        spans = (self.short, self.long)
        found: dict[tuple[str, str, int], Estimate] = {}
        with isolated(mix(seed, "net"), device):
            sizes = (train[0].shape[1], *[self.hidden] * self.depth, 10)
            net = WeightNoise(sizes, self.alpha, self.lr, self.rate_lr, len(train[1]), device)
        done, trained = 0, []
        for place, epochs in enumerate(spans):
            say(f"training to epoch {epochs}")
            with isolated(mix(seed, "train", place), device):
                nll = net.train(*train, epochs - done, self.batch, generator(seed, "order", place))
            done = epochs
            trained.append(
                f"{100 * net.error(*test):.2f} % ({nll:.3f} nats per training example) after "
                f"{epochs} epochs"
            )
            for kind in KINDS:
                say(f"gradients under {kind.label}")
                for layer, estimate in self.variances(net, kind, train, seed).items():
                    found[kind.label, layer, place] = estimate
        timing, checks = self.speed(net, train, seed, say)
        tables = [_ratios(found, spans), _absolute(found, spans), timing]
        return Outcome(
            tables,
            [],
            [_ordering(found), *checks],
            [f"Test error at the mean weights: {', '.join(trained)}."],
        )

    def variances(
        self, net: WeightNoise, kind: Kind, train: tuple[Tensor, Tensor], seed: int
    ) -> dict[str, Estimate]:
        """Average variance over the weights of each layer, from independent pairs of gradients."""
        layout, device = net.family.layout, train[0].device
        weights = [name for name in net.family.names if name.endswith("weight")]
        places = {"bottom": weights[0], "top": weights[-1]}
        batches = minibatches(*train, self.batch, generator(seed, "batches"))
        slow = kind.estimator == "per_example"
        rows, scale = self._chunk(device) if slow else None, len(train[1]) / self.batch
        values: dict[str, list[float]] = {layer: [] for layer in LAYERS}
        elbo = net.probe(kind.estimator, kind.noise)
        with isolated(mix(seed, kind.label), device):
            for _ in range(self.separate_pairs if slow else self.pairs):
                first, second = (gradient(elbo, *next(batches), rows) for _ in range(2))
                difference = layout.split((first - second) * scale)
                for layer, name in places.items():
                    values[layer].append(float(difference[name].double().square().mean()) / 2)
        return {layer: _mean(numbers) for layer, numbers in values.items()}

    def speed(
        self, net: WeightNoise, train: tuple[Tensor, Tensor], seed: int, say: Say
    ) -> tuple[Table, list[Check]]:
        """Seconds per training step of local noise and of separate samples, on the same network and
        batch.
        """
        device = train[0].device
        size = self.batch if device.type == "cuda" else self._chunk(device)
        cases = {"local": ("local", False), "separate samples": ("per_example", False)}
        if device.type == "cuda":
            cases["local, step captured as one graph"] = ("local", True)
        seconds = {}
        for label, (estimator, compile) in cases.items():
            say(f"timing {label}")
            count = self.steps if estimator == "local" else max(3, self.steps // 4)
            seconds[label] = self._time(net, estimator, compile, train, size, count, seed)
        epoch = {label: value * 50_000 / size for label, value in seconds.items()}
        paper = {"local": 7.4, "separate samples": 1635.0}
        column = "seconds per 50,000 images"
        rows = [
            Row(
                label,
                {"ms per step": 1e3 * seconds[label], column: epoch[label]},
                {column: paper.get(label)},
            )
            for label in cases
        ]
        table = Table(f"Time of a training step, {size} examples", ["ms per step", column], rows)
        checks = []
        for label in cases:
            if label != "separate samples":
                ratio = seconds["separate samples"] / seconds[label]
                expected = f"at least 100 times (paper: {SPEEDUP:.0f})"
                checks.append(
                    Check(
                        f"separate samples slower than {label}",
                        f"{ratio:.0f} times",
                        expected,
                        ratio >= 100.0,
                    )
                )
        return table, checks

    def _time(
        self,
        net: WeightNoise,
        estimator: str,
        compile: bool,
        train: tuple[Tensor, Tensor],
        size: int,
        count: int,
        seed: int,
    ) -> float:
        device, num_data = train[0].device, len(train[1])
        elbo = Elbo(net.model, Posterior([copy.deepcopy(net.family)]), estimators[estimator])
        lr = torch.tensor(self.lr, device=device) if device.type == "cuda" else self.lr
        step = make_step(elbo, adam(elbo, lr, num_data), num_data, compile)
        batches = minibatches(*train, size, generator(seed, "timing"))
        with isolated(mix(seed, "timing"), device):
            for _ in range(3):
                step(*next(batches), 1.0)
            ready = [next(batches) for _ in range(count)]
            _wait(device)
            started = time.perf_counter()
            for x, y in ready:
                step(x, y, 1.0)
            _wait(device)
            return (time.perf_counter() - started) / count

    def _chunk(self, device: torch.device) -> int:
        return min(self.chunk or (self.batch if device.type == "cuda" else 20), self.batch)


def _mean(values: list[float]) -> Estimate:
    numbers = torch.tensor(values, dtype=torch.float64)
    return Estimate(float(numbers.mean()), float(numbers.std()) / math.sqrt(len(values)))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _columns(spans: tuple[int, int]) -> dict[str, tuple[str, int]]:
    return {
        f"{layer}, {epochs} epochs": (layer, place)
        for layer in LAYERS
        for place, epochs in enumerate(spans)
    }


def _ratios(found: dict[tuple[str, str, int], Estimate], spans: tuple[int, int]) -> Table:
    columns, rows = _columns(spans), []
    base = KINDS[0]
    for kind in KINDS[1:]:
        measured = {
            c: found[kind.label, *key].value / found[base.label, *key].value
            for c, key in columns.items()
        }
        rows.append(
            Row(
                kind.label,
                measured,
                {c: kind.paper[key] / base.paper[key] for c, key in columns.items()},
            )
        )
    return Table(
        "Variance of minibatch gradients, as a multiple of that of local noise", list(columns), rows
    )


def _absolute(found: dict[tuple[str, str, int], Estimate], spans: tuple[int, int]) -> Table:
    columns, rows = _columns(spans), []
    for kind in KINDS:
        values = {c: found[kind.label, *key] for c, key in columns.items()}
        measured = {c: f"{v.value:.2e} ± {v.error:.0e}" for c, v in values.items()}
        rows.append(Row(kind.label, measured, {c: kind.paper[key] for c, key in columns.items()}))
    note = (
        "Of the gradient of the whole data term, N / M times the batch's; the source does not "
        "state its scale, so only ratios "
        "compare. ± one standard error."
    )
    return Table("Variance of minibatch gradients", list(columns), rows, note)


def _ordering(found: dict[tuple[str, str, int], Estimate]) -> Check:
    """local < separate < single in all cells, each gap by two standard errors."""
    gaps = []
    for layer in LAYERS:
        for place in range(2):
            row = [found[kind.label, layer, place] for kind in KINDS[:3]]
            gaps += [(b.value - a.value) / math.hypot(a.error, b.error) for a, b in pairwise(row)]
    told = f"smallest gap {min(gaps):.1f} standard errors"
    return Check(
        "local < separate < single", told, "every gap above 2 standard errors", min(gaps) > 2.0
    )
