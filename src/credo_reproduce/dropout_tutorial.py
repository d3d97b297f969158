"""Dropout on a thousand digits (Lee's implementation tutorial): accuracy by the mean weights and by
sampling, and what the draws say.

The first 100 training images of every class of MNIST, a perceptron with 500-500 ReLU units, Adam at
1e-3, weight decay 1e-4, S = 100, over several seeds. The tutorial states neither its drop rate nor
its number of epochs; here p = 0.5 and 100 epochs of batches of 100, the learning rate falling along
a cosine. Its decay (half of 1e-4 times the squared weights, added to the mean nll) is a prior N(0,
l^-2) with l^2 = 1e-4 N (1 - p), which all methods but variational dropout share; that one has the
log-uniform prior. The size of the decay in its log, 0.054 after an epoch, tells the initial
weights: Glorot's uniform ones, as here. Dropout is on hidden units, as there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from credo.bnn import BNN
from credo.core.seeds import isolated, mix
from credo.core.settings import setting
from credo.nets import mlp
from credo.posteriors import ConcreteDropout, length_scale
from credo_reproduce.base import Experiment, Say, experiments
from credo_reproduce.digit_uncertainty import digit_probabilities, more_disagreement
from credo_reproduce.outcome import Check, Outcome, Row, Table, mean_and_std
from credo_reproduce.plots import curves, line
from credo_reproduce.probes import images

DECAY, RATE = 1e-4, 0.5


class Kind(NamedTuple):
    """A row of the table: the method with its settings, and the tutorial's accuracies (mean,
    deviation) by mean weights and by sampling.
    """

    label: str
    method: str
    settings: dict[str, Any]
    mean_weights: tuple[float, float]
    sampled: tuple[float, float] | None


KINDS = (
    Kind("base", "map", {}, (89.37, 0.32), None),
    Kind("MC dropout", "mc_dropout", {"p": RATE}, (90.07, 0.44), (90.17, 0.23)),
    Kind(
        "concrete dropout",
        "concrete_dropout",
        {"p": RATE, "rate_lr": 10.0},
        (90.23, 0.21),
        (90.20, 0.32),
    ),
    Kind(
        "variational dropout",
        "variational_dropout",
        {"p": 0.3, "rate_lr": 10.0},
        (88.77, 0.53),
        (89.60, 0.56),
    ),
)


@experiments.register("dropout_tutorial")
@dataclass(frozen=True)
class DropoutTutorial(Experiment):
    """Four fits of the same perceptron to 1,000 digits, learned keep probabilities, and class
    probabilities over draws.
    """

    name: ClassVar[str] = "dropout_tutorial"
    title: ClassVar[str] = (
        "Dropout on a thousand digits: accuracy, keep probabilities, class probabilities"
    )
    reference: ClassVar[str] = (
        "Lee 2019, Implementation tutorial: Bayesian deep learning, parts II and III."
    )
    cost: ClassVar[str] = "6 minutes on two CPU cores, 2 on a GPU"
    needs: ClassVar[tuple[str, ...]] = ("mnist",)
    threads: ClassVar[int | None] = None
    quick_settings: ClassVar[dict[str, Any]] = {
        "per_class": 10,
        "more": 200,
        "epochs": 3,
        "more_epochs": 1,
        "seeds": 2,
        "samples": 5,
        "draws": 20,
        "num_test": 200,
        "width": 20,
    }

    per_class: int = setting(100, "Training images of every class.", ge=2)
    more: int = setting(10_000, "Training images of the second fit of keep probabilities.", ge=100)
    epochs: int = setting(100, "Passes over the training images.", ge=1)
    more_epochs: int = setting(40, "Passes over the larger set.", ge=1)
    width: int = setting(500, "Units of the two hidden layers.", ge=1)
    seeds: int = setting(5, "Fits of every row.", ge=2)
    samples: int = setting(100, "Draws behind the accuracies.", ge=2)
    draws: int = setting(1000, "Draws behind the class probabilities.", ge=2)
    num_test: int = setting(10_000, "Test images.", ge=1)

    def run(self, device: torch.device, seed: int, say: Say) -> Outcome:
        """The table, the keep probabilities, and the probabilities of three kinds of images."""
        train, (test_x, test_y) = images("mnist", device)
        few = _first(train, self.per_class)
        test = (test_x[: self.num_test], test_y[: self.num_test])
        found: dict[str, list[tuple[float, float]]] = {kind.label: [] for kind in KINDS}
        shown: BNN | None = None
        for place in range(self.seeds):
            for kind in KINDS:
                bnn = self._fit(kind.method, kind.settings, few, self.epochs, seed + place, device)
                found[kind.label].append(
                    (self._accuracy(bnn, test, "mean"), self._accuracy(bnn, test, None))
                )
                say(
                    f"seed {seed + place}, {kind.label}: {found[kind.label][-1][0]:.2f} by mean "
                    f"weights, {found[kind.label][-1][1]:.2f} sampled"
                )
                shown = bnn if kind.method == "mc_dropout" and shown is None else shown
        assert shown is not None
        keeps = {}
        for label, data, epochs in (
            (_count(few), few, self.epochs),
            (f"{self.more:,} images", _head(train, self.more), self.more_epochs),
        ):
            bnn = self._fit(
                "concrete_dropout",
                {"per": "unit", "layers": "all", "p": 0.2, "rate_lr": 10.0},
                data,
                epochs,
                seed,
                device,
            )
            keeps[label] = _keep(bnn)
            say(
                f"keep probabilities with {label}: "
                + ", ".join(f"{float(k.mean()):.3f}" for k in keeps[label])
            )
        probabilities, figures = digit_probabilities(shown, test, self.draws, self.samples)
        return Outcome(
            [_accuracies(found, self), _keep_probabilities(keeps), probabilities],
            [*(_histogram(label, layers) for label, layers in keeps.items()), *figures],
            [*_checks(found), _more_kept(keeps), more_disagreement(probabilities)],
            ["Drop rate, epochs and test set of the tutorial's table are not stated there."],
        )

    def _fit(
        self,
        method: str,
        settings: dict[str, Any],
        data: tuple[Tensor, Tensor],
        epochs: int,
        seed: int,
        device: torch.device,
    ) -> BNN:
        with isolated(mix(seed, "net")):
            net = mlp(784, (self.width, self.width), 10)
            for layer in net:
                if isinstance(layer, nn.Linear):
                    nn.init.xavier_uniform_(layer.weight)
                    nn.init.zeros_(layer.bias)
        size = len(data[1])
        prior = torch.distributions.Normal(
            0.0, 1.0 / length_scale(DECAY, RATE if method != "map" else 0.0, size)
        )
        bnn = BNN(net, prior=prior)
        common = {"epochs": epochs, "batch_size": 100, "lr": 1e-3, "progress": False}
        return bnn.fit(
            data,
            method,
            seed=seed,
            device=device,
            compile=device.type == "cuda",
            **common,
            **settings,
        )

    def _accuracy(self, bnn: BNN, test: tuple[Tensor, Tensor], shortcut: str | None) -> float:
        right = (
            bnn.predict(test[0], self.samples, batch_size=2000, shortcut=shortcut).label == test[1]
        )
        return 100.0 * float(right.double().mean())


def _first(data: tuple[Tensor, Tensor], per_class: int) -> tuple[Tensor, Tensor]:
    """The first images of every class, in their order."""
    x, y = data
    rows = torch.cat([(y == digit).nonzero()[:per_class, 0] for digit in range(10)]).sort().values
    return x[rows], y[rows]


def _head(data: tuple[Tensor, Tensor], count: int) -> tuple[Tensor, Tensor]:
    return data[0][:count], data[1][:count]


def _count(data: tuple[Tensor, Tensor]) -> str:
    return f"{len(data[1]):,} images"


def _keep(bnn: BNN) -> list[Tensor]:
    """Keep probabilities of the input and of both hidden layers."""
    family = bnn.posterior.factors[0]
    assert isinstance(family, ConcreteDropout)
    return [1 - family.rate(name).cpu() for name in family.noised]


def _accuracies(found: dict[str, list[tuple[float, float]]], run: DropoutTutorial) -> Table:
    rows = []
    for kind in KINDS:
        columns = {"mean weights": ([a for a, _ in found[kind.label]], kind.mean_weights)}
        if kind.sampled is not None:
            columns["sampled"] = ([b for _, b in found[kind.label]], kind.sampled)
        ours = {
            name: "{:.2f} ± {:.2f}".format(*mean_and_std(values))
            for name, (values, _) in columns.items()
        }
        rows.append(
            Row(
                kind.label,
                ours,
                {name: "{:.2f} ± {:.2f}".format(*theirs) for name, (_, theirs) in columns.items()},
            )
        )
    note = (
        f"Mean and deviation over {run.seeds} seeds; {run.samples} draws; {run.num_test:,} test "
        "images."
    )
    return Table("Test accuracy, per cent", ["mean weights", "sampled"], rows, note)


def _keep_probabilities(keeps: dict[str, list[Tensor]]) -> Table:
    columns = ["input", "first hidden layer", "second hidden layer"]
    rows = [
        Row(label, {c: float(k.mean()) for c, k in zip(columns, layers, strict=True)})
        for label, layers in keeps.items()
    ]
    return Table(
        "Learned keep probabilities, mean over units",
        columns,
        rows,
        "Concrete dropout with a rate for every unit.",
    )


def _histogram(label: str, layers: list[Tensor]) -> dict[str, Any]:
    edges = torch.linspace(0, 1, 41)
    centres = ((edges[1:] + edges[:-1]) / 2).tolist()
    names = ("input", "first hidden layer", "second hidden layer")
    lines = [
        line(name, centres, (torch.histc(keep.float(), 40, 0, 1) / keep.numel()).tolist())
        for name, keep in zip(names, layers, strict=True)
    ]
    return curves(
        f"Learned keep probabilities, {label}",
        "keep probability",
        "share of units",
        lines,
        caption="One keep probability per unit, started at 0.8.",
    )


def _checks(found: dict[str, list[tuple[float, float]]]) -> list[Check]:
    out = []
    for kind in KINDS:
        if kind.sampled is not None:
            mean, _ = mean_and_std([b for _, b in found[kind.label]])
            limit = kind.sampled[0] - kind.sampled[1]
            out.append(
                Check(
                    f"{kind.label}, sampled",
                    f"{mean:.2f} %",
                    f"at least {limit:.2f} %",
                    mean >= limit,
                )
            )
    return out


def _more_kept(keeps: dict[str, list[Tensor]]) -> Check:
    few, more = ([float(k.mean()) for k in layers] for layers in keeps.values())
    gains = [b - a for a, b in zip(few, more, strict=True)]
    return Check(
        "more images, more kept",
        f"by at least {min(gains):.3f} in every layer",
        "above 0",
        min(gains) > 0,
    )
