"""What members are worth on CIFAR-10: one network, snapshots and SWAG at the same cost, and
ensembles of several at as many times the cost.

A residual network with 20 layers on 20,000 training images, shifted crops and mirror images, SGD
with momentum and a learning rate that falls along a cosine, weight decay 5e-4 written as a prior
N(0, 1 / (decay N)). Predictions average the members' probabilities. Everything shares these; the
single network starts as the first member of the ensemble does.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Normal

from credo import metrics
from credo.bnn import BNN
from credo.core.seeds import isolated, mix
from credo.core.settings import setting
from credo.nets import Augmented, CropFlip, resnet
from credo.predictive import Predictive
from credo_reproduce.base import Experiment, Say, experiments
from credo_reproduce.outcome import Check, Outcome, Row, Table
from credo_reproduce.plots import curves, line
from credo_reproduce.probes import Pair, colour_images

#: Published error in % with all 50,000 training images and another network: Huang et al. 2017,
#: DenseNet-40.
PAPER = {"single": 5.24, "snapshot": 4.84}


class Fit(NamedTuple):
    """A row of the table: its label, the method, the method's settings, and how many times the
    epochs it trains.
    """

    label: str
    method: str
    settings: dict[str, Any]
    times: int


class Score(NamedTuple):
    """Error in %, nll in nats and calibration error of a prediction."""

    error: float
    nll: float
    ece: float

    @classmethod
    def of(cls, predictive: Predictive, y: Tensor) -> Score:
        """Of probabilities averaged over draws."""
        wrong = 100.0 * float((predictive.label != y).double().mean())
        return cls(
            wrong,
            -float(predictive.log_prob(y).double().mean()),
            float(metrics.ece(predictive.mean, y)),
        )


@experiments.register("ensembles")
@dataclass(frozen=True)
class Ensembles(Experiment):
    """Members, copies and averages of a residual network."""

    name: ClassVar[str] = "ensembles"
    title: ClassVar[str] = "Snapshots, SWAG and ensembles of a residual network on CIFAR-10"
    reference: ClassVar[str] = (
        "Huang et al. 2017, Snapshot ensembles; Maddox et al. 2019, SWAG; Lakshminarayanan et al. "
        "2017, Deep ensembles; "
        "Wilson and Izmailov 2020, MultiSWAG."
    )
    cost: ClassVar[str] = "7 minutes on an H200"
    needs: ClassVar[tuple[str, ...]] = ("cifar10",)
    threads: ClassVar[int | None] = None
    quick_settings: ClassVar[dict[str, Any]] = {
        "epochs": 8,
        "cycles": 2,
        "members": 2,
        "depth": 8,
        "width": 4,
        "num_train": 160,
        "num_test": 100,
        "batch": 40,
    }

    epochs: int = setting(40, "Passes over the training images, of every network.", ge=1)
    cycles: int = setting(3, "Snapshots in one training run.", ge=1)
    members: int = setting(5, "Networks of an ensemble.", ge=2)
    depth: int = setting(20, "Layers, 6 n + 2.", ge=8)
    width: int = setting(16, "Channels of the first stage.", ge=1)
    norm: str = setting("batch", "Normalisation of the network.", choices=("batch", "group", "frn"))
    batch: int = setting(128, "Images in a step.", ge=1)
    lr: float = setting(0.1, "Learning rate of SGD with momentum 0.9.", gt=0.0)
    swa_lr: float = setting(0.3, "Learning rate while SWAG gathers, as a share of lr.", gt=0.0)
    decay: float = setting(5e-4, "Weight decay, as a prior of variance 1 / (decay N).", gt=0.0)
    draws: int = setting(30, "Draws of SWAG and MultiSWAG.", ge=2)
    num_train: int = setting(20_000, "Training images.", ge=1)
    num_test: int = setting(10_000, "Test images.", ge=1)

    def run(self, device: torch.device, seed: int, say: Say) -> Outcome:
        """Fit all, then judge the ensembles by their number of members too."""
        train, test = colour_images("cifar10", device, self.num_train, self.num_test)
        scores: dict[str, Score] = {}
        rows: list[Row] = []
        growth: dict[str, list[Score]] = {}
        for fit in self._fits():
            started = time.perf_counter()
            bnn = self._fit(fit, train, seed, device)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            seconds = time.perf_counter() - started
            predictive = bnn.predict(
                test[0], max(self.draws, self.members, self.cycles), seed=seed, batch_size=500
            )
            scores[fit.label] = score = Score.of(predictive, test[1])
            measured = {"error %": score.error, "nll": score.nll, "ece": score.ece}
            trained = {
                "epochs in all": fit.times * self.epochs,
                "members or draws": predictive.num_samples,
                "seconds": seconds,
            }
            rows.append(Row(fit.label, measured | trained, {"error %": PAPER.get(fit.label)}))
            say(
                f"{fit.label}: error {score.error:.2f} %, nll {score.nll:.4f}, ece "
                f"{score.ece:.4f}, {seconds:.0f} s"
            )
            if fit.label in ("deep ensemble", "snapshot"):
                growth[fit.label] = [
                    Score.of(Predictive(predictive.outputs[:count], predictive.likelihood), test[1])
                    for count in range(1, predictive.num_samples + 1)
                ]
        return Outcome(
            [_table(rows), _members(growth)],
            [_figure(growth, key) for key in ("accuracy", "nll")],
            _checks(scores, growth),
        )

    def _fits(self) -> list[Fit]:
        """The rows of the table."""
        path = {"swa_lr": self.swa_lr, "num_draws": self.draws}
        return [
            Fit("single", "deep_ensemble", {"num_members": 1}, 1),
            Fit("snapshot", "snapshot", {"num_cycles": self.cycles}, 1),
            Fit("SWAG", "swag", path, 1),
            Fit("deep ensemble", "deep_ensemble", {"num_members": self.members}, self.members),
            Fit("MultiSWAG", "multiswag", path | {"num_members": self.members}, self.members),
        ]

    def _fit(self, fit: Fit, train: Pair, seed: int, device: torch.device) -> BNN:
        with isolated(mix(seed, "net")):
            net = Augmented(resnet(10, self.depth, self.width, norm=self.norm), CropFlip())
        bnn = BNN(net, prior=Normal(0.0, (self.decay * len(train[1])) ** -0.5))
        common: dict[str, Any] = {
            "init": "random",
            "optimizer": "sgd",
            "momentum": 0.9,
            "progress": False,
        }
        common["compile"] = "graph" if device.type == "cuda" else False
        return bnn.fit(
            train,
            fit.method,
            epochs=self.epochs,
            batch_size=self.batch,
            lr=self.lr,
            seed=seed,
            device=device,
            **common,
            **fit.settings,
        )


def _table(rows: list[Row]) -> Table:
    note = (
        "The source's errors are of DenseNet-40 with all 50,000 training images. Single, snapshot "
        "and SWAG train for the same number of epochs, "
        "the ensembles for as many times that as they have members."
    )
    columns = ("error %", "nll", "ece", "epochs in all", "members or draws", "seconds")
    return Table("One network, and several", columns, rows, note, digits=4)


def _members(growth: dict[str, list[Score]]) -> Table:
    most = max(map(len, growth.values()))
    columns = [str(count) for count in range(1, most + 1)]
    rows = [
        Row(
            f"{label}: {title}",
            {column: getattr(score, key) for column, score in zip(columns, scores, strict=False)},
        )
        for label, scores in growth.items()
        for title, key in (("error %", "error"), ("nll", "nll"))
    ]
    return Table(
        "With the first members only",
        columns,
        rows,
        "Probabilities averaged over the first 1, 2, ... members.",
        digits=4,
    )


def _figure(growth: dict[str, list[Score]], key: str) -> dict[str, Any]:
    values = {"accuracy": lambda score: 100.0 - score.error, "nll": lambda score: score.nll}[key]
    lines = [
        line(label, range(1, len(scores) + 1), [values(score) for score in scores], marks=True)
        for label, scores in growth.items()
    ]
    label = {"accuracy": "test accuracy in %", "nll": "test nll in nats"}[key]
    return curves(
        f"{label.capitalize()} by number of members",
        "members",
        label,
        lines,
        caption="Members of a deep ensemble cost one training run each, all snapshots together "
        "cost one.",
    )


def _checks(scores: dict[str, Score], growth: dict[str, list[Score]]) -> list[Check]:
    single = scores["single"].nll
    out = [
        Check(
            f"{label} at equal epochs",
            f"nll {scores[label].nll:.4f}",
            f"below the single network's {single:.4f}",
            scores[label].nll < single,
        )
        for label in ("snapshot", "SWAG")
    ]
    for label, by_size in growth.items():
        ends = f"{by_size[0].nll:.4f} with one, {by_size[-1].nll:.4f} with {len(by_size)}"
        out.append(
            Check(
                f"{label}: nll falls with members",
                ends,
                "lower with all",
                by_size[-1].nll < by_size[0].nll,
            )
        )
    return out
