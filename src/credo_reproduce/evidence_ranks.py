"""The marginal likelihood of networks of many sizes ranks them as cross-validation does, from the
training data alone.

A random tanh teacher of one hidden layer with five units on four inputs, noise known. Every network
is fitted by ``laplace`` with its full curvature while the evidence sets the prior's width, from
several starts of which the best evidence counts. Beside it: five-fold cross-validation of the
predictive nll, the same fit with the same starts in every fold, and the nll of many fresh points,
which no one has in practice. A model's place by one is compared with its place by the other
(Spearman). On easy problems, such as a sine, all networks that are large enough predict equally
well, and there is nothing to rank.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Normal

from credo.bnn import BNN
from credo.core.seeds import generator, isolated, mix
from credo.core.settings import setting
from credo.likelihoods import Gaussian
from credo.nets import mlp
from credo.tasks.fidelity import rank_correlation
from credo_reproduce.base import Experiment, Say, experiments
from credo_reproduce.outcome import Check, Outcome, Row, Table
from credo_reproduce.plots import curves, line

Pair = tuple[Tensor, Tensor]
WIDTHS, DEPTHS = (1, 2, 5, 10, 20), (1, 2, 3)
UNITS = 5  # of the teacher
ALIKE = 0.8  # rank correlation from which two rankings count as the same


class Model(NamedTuple):
    """One size of network: log evidence in nats, nll of held-out points ``(N,)`` by
    cross-validation, and mean nll of fresh points.
    """

    width: int
    depth: int
    evidence: float
    held_out: Tensor
    fresh: float

    @property
    def label(self) -> str:
        """As the table shows it."""
        return f"{self.depth} x {self.width}"

    @property
    def folds(self) -> float:
        """Mean nll by cross-validation."""
        return float(self.held_out.mean())

    @property
    def error(self) -> float:
        """Standard error of that mean, points taken as independent."""
        return float(self.held_out.std()) / math.sqrt(len(self.held_out))


@experiments.register("evidence_ranks")
@dataclass(frozen=True)
class EvidenceRanks(Experiment):
    """Log evidence against cross-validation over widths and depths."""

    name: ClassVar[str] = "evidence_ranks"
    title: ClassVar[str] = (
        "The marginal likelihood ranks widths and depths as cross-validation does"
    )
    reference: ClassVar[str] = (
        "MacKay 1992, A practical Bayesian framework for backpropagation networks; Immer et al. "
        "2021, Scalable marginal likelihood estimation "
        "for model selection in deep learning (no table is repeated)."
    )
    cost: ClassVar[str] = "5 minutes on one CPU core"
    quick_settings: ClassVar[dict[str, Any]] = {
        "num_data": 24,
        "starts": 1,
        "epochs": 5,
        "num_folds": 2,
    }

    num_data: int = setting(150, "Training points.", ge=4)
    inputs: int = setting(
        4, "Inputs of the teacher; with fewer, networks that are large enough differ less.", ge=1
    )
    noise: float = setting(
        0.1, "Deviation of the noise; the teacher's function has a variance of 1.", gt=0.0
    )
    num_folds: int = setting(5, "Folds of the cross-validation.", ge=2)
    starts: int = setting(2, "Initial values of every fit; the best evidence counts.", ge=1)
    epochs: int = setting(800, "Steps of each fit, on all of its data.", ge=1)
    lr: float = setting(
        0.02, "Learning rate of Adam at the start; it falls along a cosine.", gt=0.0
    )
    num_fresh: int = setting(4000, "Fresh points of the teacher.", ge=2)

    def run(self, device: torch.device, seed: int, say: Say) -> Outcome:
        """All sizes."""
        train, fresh = ((x.to(device), y.to(device)) for x, y in self.data(seed))
        widths, depths = (WIDTHS[1:3], DEPTHS[:2]) if self.quick else (WIDTHS, DEPTHS)
        models = []
        for depth in depths:
            for width in widths:
                models.append(model := self._measure(width, depth, train, fresh, device, seed))
                told = f"{model.folds:.3f} ± {model.error:.3f}, of fresh points {model.fresh:.3f}"
                say(
                    f"{model.label}: log evidence {model.evidence:.1f}, nll by cross-validation "
                    f"{told}"
                )
        return Outcome(
            [_table(models, self.noise), _correlations(models)],
            [_by_width(models), _places(models)],
            _checks(models),
        )

    def data(self, seed: int) -> list[Pair]:
        """The training and the fresh points."""
        return teacher((self.num_data, self.num_fresh), self.inputs, self.noise, seed)

    def _measure(
        self, width: int, depth: int, train: Pair, fresh: Pair, device: torch.device, seed: int
    ) -> Model:
        hidden = (width,) * depth
        evidence, bnn = self._fit(hidden, train, device, seed)
        held_out = torch.empty(self.num_data, dtype=torch.float64)
        for fold in folds(self.num_data, self.num_folds, seed):
            rest = torch.ones(self.num_data, dtype=torch.bool)
            rest[fold] = False
            _, part = self._fit(hidden, _rows(train, rest), device, seed)
            held_out[fold] = _nll(part, _rows(train, fold))
        return Model(width, depth, evidence, held_out, float(_nll(bnn, fresh).mean()))

    def _fit(
        self, hidden: Sequence[int], data: Pair, device: torch.device, seed: int
    ) -> tuple[float, BNN]:
        """The start whose evidence is largest; the evidence is looked at three times on the way,
        and last at the end.
        """
        found = []
        for start in range(self.starts):
            with isolated(mix(seed, "net", start)):
                net = mlp(self.inputs, hidden, 1, activation="tanh").double()
            bnn = BNN(net, Gaussian(std=self.noise), prior=Normal(0.0, 1.0)).fit(
                data,
                "laplace",
                structure="full",
                tune="online",
                every=max(1, self.epochs // 4),
                epochs=self.epochs,
                lr=self.lr,
                batch_size=len(data[1]),
                seed=seed,
                device=device,
                progress=False,
            )
            found.append((bnn.history[-1]["log_evidence"], bnn))
        return max(found, key=lambda pair: pair[0])


def teacher(sizes: Sequence[int], inputs: int, noise: float, seed: int) -> list[Pair]:
    """Data sets of one teacher f(x) = a tanh(W x + b), scaled to unit variance: inputs N(0, I),
    targets f + noise, in double precision.
    """
    source = generator(seed, "evidence_ranks")

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=source, dtype=torch.float64)

    inward, bias, outward = (
        2.0 * normal(inputs, UNITS) / math.sqrt(inputs),
        normal(UNITS),
        normal(UNITS, 1),
    )
    values = torch.tanh(normal(10_000, inputs) @ inward + bias) @ outward
    found = []
    for size in sizes:
        x = normal(size, inputs)
        f = (torch.tanh(x @ inward + bias) @ outward - values.mean()) / values.std()
        found.append((x, f + noise * normal(size, 1)))
    return found


def folds(num_data: int, num_folds: int, seed: int) -> list[Tensor]:
    """The rows of each fold, at random and of equal size up to one."""
    return list(
        torch.randperm(num_data, generator=generator(seed, "folds")).tensor_split(num_folds)
    )


def _rows(data: Pair, rows: Tensor) -> Pair:
    return data[0][rows], data[1][rows]


def _nll(bnn: BNN, data: Pair) -> Tensor:
    """Of every point ``(N,)``. The predictive of a linearised network under normal noise is normal:
    its two moments are all of it.
    """
    predictive = bnn.predict(data[0], num_samples=10)
    return -Normal(predictive.mean, predictive.std).log_prob(data[1])[:, 0].detach().double().cpu()


def _series(models: Sequence[Model]) -> dict[str, Tensor]:
    """What models are ranked by; the larger the better."""
    return {
        "log evidence": torch.tensor([model.evidence for model in models], dtype=torch.float64),
        "cross-validation": -torch.tensor([model.folds for model in models], dtype=torch.float64),
        "fresh points": -torch.tensor([model.fresh for model in models], dtype=torch.float64),
    }


def _place(values: Tensor) -> list[int]:
    """1 for the largest."""
    return [1 + int((values > value).sum()) for value in values]


def _table(models: Sequence[Model], noise: float) -> Table:
    series = {name: _place(values) for name, values in _series(models).items()}
    rows = []
    for at, model in enumerate(models):
        measured: dict[str, Any] = {
            "log evidence": model.evidence,
            "by evidence": series["log evidence"][at],
        }
        measured |= {
            "nll, cross-validation": model.folds,
            "±": model.error,
            "by folds": series["cross-validation"][at],
        }
        rows.append(
            Row(
                model.label,
                measured
                | {"nll, fresh points": model.fresh, "by fresh points": series["fresh points"][at]},
            )
        )
    floor = 0.5 * math.log(2 * math.pi * math.e * noise**2)
    note = (
        "Label: hidden layers x units. ±: standard error over points. By ...: places, 1 is the "
        "best. The teacher itself has a mean nll of "
        f"{floor:.3f}."
    )
    return Table("Evidence, cross-validation and fresh points", list(rows[0].measured), rows, note)


def _correlations(models: Sequence[Model]) -> Table:
    series = _series(models)
    rows = [
        Row(one, {other: rank_correlation(series[one], series[other]) for other in series})
        for one in series
    ]
    return Table("Spearman's rank correlations", list(series), rows)


def _checks(models: Sequence[Model]) -> list[Check]:
    series = _series(models)
    alike = {
        name: rank_correlation(series["log evidence"], series[name])
        for name in ("cross-validation", "fresh points")
    }
    chosen = max(models, key=lambda model: model.evidence)
    best = min(models, key=lambda model: model.folds)
    behind = chosen.folds - best.folds
    told = f"{chosen.label}, {behind:.3f} nats behind {best.label}"
    return [
        *(
            Check(
                f"evidence ranks as {name}",
                f"{value:.2f}",
                f"rank correlation at least {ALIKE}",
                value >= ALIKE,
            )
            for name, value in alike.items()
        ),
        Check(
            "the evidence's choice, by cross-validation",
            told,
            f"within one standard error, {best.error:.3f}",
            behind <= best.error,
        ),
    ]


def _by_width(models: Sequence[Model]) -> dict[str, Any]:
    """How far each model is behind the best, both in nats per point: 0.01 is added, so that the
    best can be drawn.
    """
    top, low, count = (
        max(m.evidence for m in models),
        min(m.folds for m in models),
        len(models[0].held_out),
    )
    lines = []
    for place, depth in enumerate(sorted({model.depth for model in models})):
        row = [model for model in models if model.depth == depth]
        widths = [model.width for model in row]
        name = f"{depth} hidden layer{'s' if depth > 1 else ''}"
        losses = {
            "evidence": [(top - m.evidence) / count for m in row],
            "cross-validation": [m.folds - low for m in row],
        }
        for what, values in losses.items():
            above = [0.01 + value for value in values]
            how = {"marks": True, "colour": place, "dash": what != "evidence"}
            lines.append(line(f"{name}: {what}", widths, above, **how))
    return curves(
        "Behind the best model",
        "units of a hidden layer",
        "0.01 + nats per point",
        lines,
        log_x=True,
        log_y=True,
        caption="Log evidence over the number of points, and nll by cross-validation (dashed); "
        "lower is better.",
    )


def _places(models: Sequence[Model]) -> dict[str, Any]:
    series = _series(models)
    first, second = _place(series["log evidence"]), _place(series["cross-validation"])
    points = []
    for depth in sorted({model.depth for model in models}):
        at = [place for place, model in enumerate(models) if model.depth == depth]
        name = f"{depth} hidden layer{'s' if depth > 1 else ''}"
        points.append(line(name, [first[place] for place in at], [second[place] for place in at]))
    ends = [1, len(models)]
    return curves(
        "Places by evidence and by cross-validation",
        "place by evidence",
        "place by cross-validation",
        [line("the same", ends, ends, dash=True, colour=-1)],
        points=points,
        caption="1 is the best.",
    )
