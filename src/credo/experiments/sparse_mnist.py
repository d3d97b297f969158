"""Sparse variational dropout on MNIST: how few weights LeNet-300-100 and LeNet-5-Caffe need, and how few bytes.

Molchanov et al.'s recipe (Adam, batch 100, the KL sets in after 5 epochs and counts fully from epoch 20, the learning rate falls evenly to zero)
from a trained network. A part of the training images is held out; on it the threshold of log alpha is chosen, and the test images are looked at
once for each row. Compression is from counts: of weights, as in the paper, and of all numbers left, biases included, once units without use are gone.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Normal

from credo import compress
from credo.bnn import BNN
from credo.compress import Pruned
from credo.compress.curve import Curve
from credo.core.errors import SettingError
from credo.core.seeds import isolated, mix
from credo.core.settings import setting
from credo.experiments.base import Experiment, Say, experiments
from credo.experiments.outcome import Check, Outcome, Row, Table
from credo.experiments.probes import images
from credo.nets import Augmented, CropFlip, lenet5_caffe, mlp

Pair = tuple[Tensor, Tensor]


class Case(NamedTuple):
    """A network, the shape of its images, what the paper reports, and what must hold: error in per cent and compression."""

    title: str
    shape: tuple[int, ...]
    error: float
    compression: float
    sparsity: str
    most: float


CASES = {
    "lenet300": Case("LeNet-300-100", (784,), 1.92, 68.0, "98.9-97.2-62.0", 1.92),
    "lenet5": Case("LeNet-5-Caffe", (1, 28, 28), 0.75, 280.0, "67-98-99.8-95", 0.80),
}


@experiments.register("sparse_mnist")
@dataclass(frozen=True)
class SparseMNIST(Experiment):
    """Train, prune, retrain, quantise, write."""

    name: ClassVar[str] = "sparse_mnist"
    title: ClassVar[str] = "Sparse variational dropout on MNIST, from counts to bytes"
    reference: ClassVar[str] = "Molchanov, Ashukha and Vetrov 2017, Variational dropout sparsifies deep neural networks."
    cost: ClassVar[str] = "minutes on a GPU"
    needs: ClassVar[tuple[str, ...]] = ("mnist",)
    threads: ClassVar[int | None] = None
    small: ClassVar[dict[str, Any]] = {
        "epochs": 2, "pretrain": 1, "retrain": 1, "num_train": 300, "num_test": 100, "held": 100, "nets": "lenet300", "levels": 4,
    }  # fmt: skip

    nets: str = setting("lenet300,lenet5", "Networks, separated by commas.")
    epochs: int = setting(200, "Epochs of sparse variational dropout.", ge=1)
    pretrain: int = setting(15, "Epochs of the network it starts from; 0 for none.", ge=0)
    lr: float = setting(1e-3, "Learning rate.", gt=0.0)
    beta: float = setting(1.0, "Weight of the KL; above 1 fewer weights are left.", gt=0.0)
    shift: int = setting(0, "Pixels by which training images are shifted at random; 0 as in the paper.", ge=0)
    held: int = setting(5000, "Training images held out for choices.", ge=1)
    slack: float = setting(0.05, "Points of held-out error that a sparser network may cost.", ge=0.0)
    retrain: int = setting(10, "Epochs of the kept weights alone, and of the shared values.", ge=0)
    levels: int = setting(16, "Shared values per tensor in the file.", ge=1)
    num_train: int = setting(60_000, "Training images, held-out ones included.", ge=2)
    num_test: int = setting(10_000, "Test images.", ge=1)
    files: str = setting("", "Folder for the files; none are kept without one.")

    def run(self, device: torch.device, seed: int, say: Say) -> Outcome:
        """One network after another."""
        names = [name.strip() for name in self.nets.split(",")]
        unknown = [name for name in names if name not in CASES]
        if unknown or self.held >= self.num_train:
            raise SettingError(
                f"sparse_mnist: nets={self.nets!r}, held={self.held}; expected nets of {', '.join(CASES)}, and held below num_train."
            )
        rows, files, checks, figures = [], [], [], []
        for name in names:
            done = self._one(name, device, seed, say)
            rows += done.rows
            files += done.files
            checks += done.checks
            figures.append(done.figure)
        counts = ("error %", "sparsity %", "weights left", "weights, times fewer", "all numbers, times fewer", "seconds")
        sizes = ("error %", "bytes", "times smaller", "code length + header", "numbers left")
        tables = [
            Table("Weights that are left", counts, rows, "Thresholds were chosen on held-out training images.", digits=3),
            Table("Files", sizes, files, "A file against float32; errors are those of the decoded network."),
        ]
        return Outcome(tables, figures, checks)

    def _one(self, name: str, device: torch.device, seed: int, say: Say) -> Done:
        case = CASES[name]
        (x, y), (tx, ty) = images("mnist", device, self.num_train)
        x, test = x.reshape(-1, *case.shape), (tx[: self.num_test].reshape(-1, *case.shape), ty[: self.num_test])
        held, train = (x[: self.held], y[: self.held]), (x[self.held :], y[self.held :])
        graph = {
            "device": device,
            "progress": False,
            "seed": seed,
            "batch_size": 100,
            "compile": "graph" if device.type == "cuda" else False,
        }
        with isolated(mix(seed, "net")):
            net = mlp(784, (300, 100), 10) if name == "lenet300" else lenet5_caffe()
        started = time.perf_counter()
        if self.pretrain:
            point = BNN(self._shifted(net), "categorical", prior=Normal(0.0, 1.0)).fit(
                train, "map", epochs=self.pretrain, lr=1e-3, **graph
            )
            self._shifted(net).load_state_dict({n: v.cpu() for n, v in point.posterior.mean().items()})
        dense = _error(net.eval(), BNN(net, "categorical"), test)
        say(f"{case.title}: dense {dense:.2f} %, {time.perf_counter() - started:.0f} s")
        bnn = BNN(self._shifted(net), "categorical").fit(
            train, "sparse_vd", epochs=self.epochs, lr=self.lr, beta=self.beta, **graph
        )
        seconds = time.perf_counter() - started
        plain = BNN(net, "categorical")
        curve = compress.curve(bnn, held)
        chosen = curve.best(self.slack / 100)
        tuned = compress.fine_tune(chosen, bnn, train, self.retrain, device=device)
        pruned = _inner(tuned, net)
        tidy = compress.tidy(pruned, test[0][:64].cpu())
        rows = [
            Row(f"{case.title}, dense", {"error %": dense}),
            _row(f"{case.title}, log alpha < 3", _inner(curve.points[0].pruned, net), plain, test, None, seconds, case),
            _row(
                f"{case.title}, chosen ({chosen.threshold:g}), retrained",
                pruned,
                plain,
                test,
                tidy,
                time.perf_counter() - started,
                case,
            ),
        ]
        for row in rows[1:]:
            say(f"{row.label}: {row.measured}")
        codes = compress.quantise(tidy, levels=self.levels)
        codes = compress.tune_books(codes, net, plain, train, self.retrain, device=device)
        with tempfile.TemporaryDirectory() as nowhere:
            path = Path(self.files or nowhere) / f"{name}.credo"
            told = compress.encode(codes, path, net=net)
            error, length = _error(compress.decode(path, net), plain, test), told.code_bits / 8 + told.header_bytes
        say(f"{path.name}: {told.bytes} bytes, {told.ratio:.0f}x, error {error:.2f} %")
        measured = {"error %": error, "bytes": told.bytes, "times smaller": told.ratio, "numbers left": codes.nonzero}
        file = Row(case.title, measured | {"code length + header": length})
        best = rows[2].measured
        error_, fewer = float(best["error %"] or 0.0), float(best["weights, times fewer"] or 0.0)  # type: ignore[arg-type]
        checks = [
            Check(
                f"{case.title}: error and compression", f"{error_:.2f} % at {fewer:.0f}x",
                f"at most {case.most:.2f} % at {case.compression:.0f}x or more", error_ <= case.most and fewer >= case.compression,
            ),
            Check(
                f"{case.title}: the file is as long as its code", f"{told.bytes} bytes", f"within 2 % of {length:.0f}",
                abs(told.bytes - length) <= 0.02 * length,
            ),
        ]  # fmt: skip
        return Done(rows, [file], checks, _figure(case.title, curve))

    def _shifted(self, net: nn.Module) -> nn.Module:
        return Augmented(net, CropFlip(self.shift, flip=False)) if self.shift and isinstance(net[0], nn.Conv2d) else net  # type: ignore[index]


class Done(NamedTuple):
    """What one network brings."""

    rows: list[Row]
    files: list[Row]
    checks: list[Check]
    figure: dict[str, Any]


def _inner(pruned: Pruned, net: nn.Module) -> Pruned:
    """Without the module that shifts training images, if there is one."""
    if isinstance(pruned.net, type(net)):
        return pruned
    inside = pruned.net.get_submodule("net")
    masks, std = ({n.removeprefix("net."): t for n, t in table.items()} for table in (pruned.masks, pruned.std))
    return Pruned(inside, masks, std, pruned.rule, pruned.threshold)


def _error(net: nn.Module, bnn: BNN, data: Pair) -> float:
    return 100.0 * (1.0 - compress.score(net, bnn, data)["accuracy"])


def _row(label: str, pruned: Pruned, bnn: BNN, test: Pair, tidy: Pruned | None, seconds: float, case: Case) -> Row:
    left, total = sum(int(m.sum()) for m in pruned.masks.values()), sum(m.numel() for m in pruned.masks.values())
    sparsity = "-".join(f"{100 * share:.3g}" for share in pruned.sparsity().values())
    measured = {
        "error %": _error(pruned.net, bnn, test),
        "sparsity %": sparsity,
        "weights left": left,
        "weights, times fewer": total / max(left, 1),
    }
    fewer = {"all numbers, times fewer": (tidy or pruned).ratio, "seconds": seconds}
    return Row(
        label, measured | fewer, {"error %": case.error, "sparsity %": case.sparsity, "weights, times fewer": case.compression}
    )


def _figure(title: str, curve: Curve) -> dict[str, Any]:
    return curve.figure() | {"title": f"{title}: held-out error against compression"}
