"""Sparse variational dropout of a VGG-like network on CIFAR-10, by its width: wider networks hold
more weights that nobody needs.

For each width k a dense network is trained (SGD with momentum, weight decay, crops and mirror
images), then sparse variational dropout goes on from it with Adam. A part of the 20,000 training
images is held out; on it the threshold of log alpha is chosen, and the test images are looked at
once for each row. Errors are those of the means, with statistics of the batch normalisation taken
again from the training images: those of the fit belong to noisy weights. The paper trains on 50,000
images.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn
from torch.distributions import Normal

from credo import compress
from credo.bnn import BNN
from credo.compress import Pruned
from credo.compress.curve import THRESHOLDS, Curve, Point
from credo.core.errors import SettingError
from credo.core.seeds import isolated, mix
from credo.core.settings import setting
from credo.data.intake import intake
from credo.engine.batchnorm import statistics
from credo.engine.fit_job import FitJob
from credo.nets import Augmented, CropFlip, vgg
from credo_reproduce.base import Experiment, Say, experiments, graph_on
from credo_reproduce.outcome import Check, Outcome, Row, Table
from credo_reproduce.plots import curves, line
from credo_reproduce.probes import Pair, colour_images

ERROR, COMPRESSION = 7.3, 49.0  # in the paper, for k = 1: test error in % and weights, times fewer


class Score(NamedTuple):
    """A network of one width: test error in % and how many times fewer weights it has."""

    dense: float
    sparse: float
    compression: float


@experiments.register("sparse_vgg")
@dataclass(frozen=True)
class SparseVGG(Experiment):
    """Dense, then sparse, for every width."""

    name: ClassVar[str] = "sparse_vgg"
    title: ClassVar[str] = "Sparse variational dropout of a VGG-like network on CIFAR-10, by width"
    reference: ClassVar[str] = (
        "Molchanov, Ashukha and Vetrov 2017, Variational dropout sparsifies deep neural networks."
    )
    cost: ClassVar[str] = "8 minutes on a shared GPU"
    needs: ClassVar[tuple[str, ...]] = ("cifar10",)
    threads: ClassVar[int | None] = None
    quick_settings: ClassVar[dict[str, Any]] = {
        "widths": "0.02,0.03",
        "epochs": 2,
        "pretrain": 1,
        "warmup": 1,
        "num_train": 60,
        "num_test": 30,
        "num_held_out": 20,
        "batch": 20,
    }

    widths: str = setting("0.25,0.5,1", "Factors k of all widths, separated by commas.")
    epochs: int = setting(60, "Epochs of sparse variational dropout.", ge=1)
    pretrain: int = setting(30, "Epochs of the dense network it starts from.", ge=1)
    warmup: int = setting(
        15, "Epochs until the KL counts fully; it is left out for the first quarter of them.", ge=0
    )
    lr: float = setting(1e-3, "Learning rate of sparse variational dropout.", gt=0.0)
    beta: float = setting(
        0.1, "Weight of the KL; 1 leaves far fewer weights, and costs error.", gt=0.0
    )
    dense_lr: float = setting(
        0.05, "Learning rate of the dense network, SGD with momentum 0.9.", gt=0.0
    )
    decay: float = setting(5e-4, "Its weight decay, as a prior of variance 1 / (decay N).", gt=0.0)
    batch: int = setting(128, "Images in a step.", ge=2)
    num_held_out: int = setting(
        1000, "Training images held out for the threshold.", ge=1, formerly="held"
    )
    slack: float = setting(0.2, "Points of held-out error that a sparser network may cost.", ge=0.0)
    num_train: int = setting(20_000, "Training images, held-out ones included.", ge=2)
    num_test: int = setting(10_000, "Test images.", ge=1)

    def run(self, device: torch.device, seed: int, say: Say) -> Outcome:
        """One width after another."""
        widths = numbers("widths", self.widths)
        count = self.num_held_out
        if count >= self.num_train or (self.num_train - count) % self.batch == 1:
            raise SettingError(
                f"sparse_vgg: num_train={self.num_train}, num_held_out={count}, "
                f"batch={self.batch}; expected images to train on, no last batch of one."
            )
        given, test = colour_images("cifar10", device, self.num_train, self.num_test)
        held_out, train = (
            (given[0][part], given[1][part])
            for part in (slice(self.num_held_out), slice(self.num_held_out, None))
        )
        rows, lines, scores = [], [], {}
        for k in widths:
            found, scores[k], curve = self._one(k, train, held_out, test, seed, device, say)
            rows += found
            ratios = [p.pruned.ratio for p in curve.points]
            errors = [100 * p.error for p in curve.points]
            lines.append(line(f"k = {k:g}", ratios, errors, marks=True))
        return Outcome([_table(rows)], _figures(scores, lines), _checks(scores))

    def _one(
        self,
        k: float,
        train: Pair,
        held_out: Pair,
        test: Pair,
        seed: int,
        device: torch.device,
        say: Say,
    ) -> tuple[list[Row], Score, Curve]:
        started = time.perf_counter()
        net = self._dense(k, train, seed, device)
        dense, seconds = 100.0 - accuracy(net.to(device), test), time.perf_counter() - started
        say(f"k = {k:g}: dense {dense:.2f} %, {seconds:.0f} s")
        rows = [
            Row(
                f"k = {k:g}, dense",
                {"error %": dense, "weights left": _weights(net), "seconds": seconds},
            )
        ]
        bnn = BNN(Augmented(net.cpu(), CropFlip())).fit(
            train,
            "sparse_vd",
            epochs=self.epochs,
            lr=self.lr,
            beta=self.beta,
            kl_warmup=self.warmup,
            batch_size=self.batch,
            seed=seed,
            device=device,
            progress=False,
            compile=graph_on(device),
        )
        seconds = time.perf_counter() - started
        points = {}
        for threshold in THRESHOLDS:
            pruned = compress.prune(bnn, threshold=threshold)
            ready = with_batch_statistics(pruned, bnn, train, self.batch, seed)
            points[threshold] = (
                Point(threshold, pruned, {"accuracy": accuracy(ready, held_out) / 100.0}),
                ready,
            )
        curve = Curve("own", tuple(point for point, _ in points.values()))
        chosen = curve.best(self.slack / 100.0).threshold
        assert chosen is not None
        source = {"error %": ERROR, "weights, times fewer": COMPRESSION} if k == 1.0 else {}
        measured = {
            at: _measured(points[at][0].pruned, points[at][1], test)
            for at in {THRESHOLDS[0], chosen}
        }
        for at, label in (
            (THRESHOLDS[0], f"log alpha < {THRESHOLDS[0]:g}"),
            (chosen, f"chosen ({chosen:g})"),
        ):
            rows.append(Row(f"k = {k:g}, {label}", measured[at] | {"seconds": seconds}, source))
            say(f"{rows[-1].label}: {rows[-1].measured}")
        best = measured[chosen]
        return rows, Score(dense, best["error %"], best["weights, times fewer"]), curve

    def _dense(self, k: float, train: Pair, seed: int, device: torch.device) -> nn.Module:
        """Trained weights and statistics, in evaluation mode."""
        with isolated(mix(seed, "net")):
            net = vgg(10, k)
        bnn = BNN(
            Augmented(net, CropFlip()), prior=Normal(0.0, (self.decay * len(train[1])) ** -0.5)
        )
        bnn.fit(
            train,
            "deep_ensemble",
            num_members=1,
            epochs=self.pretrain,
            batch_size=self.batch,
            lr=self.dense_lr,
            seed=seed,
            device=device,
            init="random",
            optimizer="sgd",
            momentum=0.9,
            progress=False,
            compile=graph_on(device),
        )
        whole = compress.plain(bnn)
        return whole.get_submodule("net")


def numbers(name: str, text: str) -> list[float]:
    """Different numbers above zero, separated by commas."""
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    if (
        not found
        or not all(0.0 < value < math.inf for value in found)
        or len(set(found)) < len(found)
    ):
        raise SettingError(
            f"{name}={text!r} is not valid; expected different numbers above 0, separated by "
            "commas."
        )
    return found


@torch.no_grad()
def accuracy(net: nn.Module, data: Pair) -> float:
    """In per cent, of a network in evaluation mode on the device of the images."""
    return 100.0 * float(
        torch.cat([net(x).argmax(-1) for x in data[0].split(500)]).eq(data[1]).double().mean()
    )


def with_batch_statistics(pruned: Pruned, bnn: BNN, data: Pair, batch: int, seed: int) -> nn.Module:
    """The pruned network on the device of the fit, with statistics of its batch normalisation from
    one pass of its own over these images.
    """
    device = bnn.model.device
    values = {name: p.detach().to(device) for name, p in pruned.net.named_parameters()}
    found = statistics(bnn.model, FitJob(intake(data), 1, batch, 1.0, seed), [values])
    return pruned.with_values({name: rows[0].cpu() for name, rows in found.items()}).net.to(device)


def _weights(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters() if p.dim() > 1)


def _measured(pruned: Pruned, ready: nn.Module, test: Pair) -> dict[str, float]:
    left, total = pruned.counts
    counts = {
        "sparsity %": 100.0 * (1.0 - left / total),
        "weights left": left,
        "weights, times fewer": total / max(left, 1),
    }
    return (
        {"error %": 100.0 - accuracy(ready, test)}
        | counts
        | {"all numbers, times fewer": pruned.ratio}
    )


def _table(rows: list[Row]) -> Table:
    columns = (
        "error %",
        "sparsity %",
        "weights left",
        "weights, times fewer",
        "all numbers, times fewer",
        "seconds",
    )
    note = (
        "Thresholds were chosen on held-out training images; the source trains on 50,000 images. "
        "Seconds of the sparse rows include the dense fit."
    )
    return Table("Width, error and compression", columns, rows, note)


def _figures(scores: dict[float, Score], lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    order, width = sorted(scores), "width factor k"
    errors = [
        line(key, order, [getattr(scores[k], key) for k in order], marks=True)
        for key in ("dense", "sparse")
    ]
    fewer = [line("weights", order, [scores[k].compression for k in order], marks=True)]
    return [
        curves("Test error by width", width, "test error in %", errors, log_x=True),
        curves("Compression by width", width, "weights, times fewer", fewer, log_x=True),
        curves(
            "Held-out error against compression",
            "times fewer parameters",
            "held-out error in %",
            lines,
            log_x=True,
        ),
    ]


def _checks(scores: dict[float, Score]) -> list[Check]:
    out = [
        Check(
            f"k = {k:g}: pruning costs little",
            f"{one.sparse:.2f} % against {one.dense:.2f} % dense",
            "at most one point more",
            one.sparse <= one.dense + 1.0,
        )
        for k, one in scores.items()
    ]
    if 1.0 in scores:
        fewer = scores[1.0].compression
        out.append(
            Check(
                "k = 1: compression",
                f"{fewer:.0f} times",
                f"{COMPRESSION:.0f} times or more",
                fewer >= COMPRESSION,
            )
        )
    order = sorted(scores)
    if len(order) > 1:
        compressions = [scores[k].compression for k in order]
        text = ", ".join(
            f"{value:.0f} at k = {k:g}" for k, value in zip(order, compressions, strict=True)
        )
        out.append(
            Check(
                "wider networks are compressed more",
                text,
                "rising with k",
                compressions == sorted(compressions) and compressions[0] < compressions[-1],
            )
        )
    return out
