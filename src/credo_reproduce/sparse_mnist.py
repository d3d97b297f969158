"""Sparse variational dropout on MNIST: how few weights LeNet-300-100 and LeNet-5-Caffe need, and
how few bytes.

Molchanov et al.'s recipe (Adam, batch 100, the KL sets in after 5 epochs and counts fully from
epoch 20, the learning rate falls evenly to zero) from a trained network. Then weights go in rounds,
each followed by training of those that stay: down to the paper's compression, and further, until
held-out images say stop; what is left there becomes a file. Compression is from counts: of weights,
as in the paper, and of all numbers left, biases included, once units without use are gone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from credo import compress
from credo.bnn import BNN
from credo.compress import Pruned
from credo.core.settings import setting
from credo.posteriors import Posterior
from credo_reproduce.base import Say, experiments
from credo_reproduce.lenets import NETS, Digits, LeNets, error
from credo_reproduce.outcome import Check, Outcome, Row, Table
from credo_reproduce.plots import curves, line

FRAMES = (0.025, 0.05, 0.1, 0.2, 0.5, 1.0)  # of the epochs, at which weights are pictured
PATCH = 100


class Case(NamedTuple):
    """What the paper reports, and what must hold: error in per cent at that compression, and of a
    file so many times smaller.
    """

    error: float
    compression: float
    sparsity: str
    most: float
    file: tuple[float, float]


CASES = {
    "lenet300": Case(1.92, 68.0, "98.9-97.2-62.0", 1.92, (2.0, 64.0)),
    "lenet5": Case(0.75, 280.0, "67-98-99.8-95", 0.80, (1.0, 600.0)),
}


@experiments.register("sparse_mnist")
@dataclass(frozen=True)
class SparseMNIST(LeNets):
    """Train, prune, retrain, quantise, write."""

    name: ClassVar[str] = "sparse_mnist"
    title: ClassVar[str] = "Sparse variational dropout on MNIST, from counts to bytes"
    reference: ClassVar[str] = (
        "Molchanov, Ashukha and Vetrov 2017, Variational dropout sparsifies deep neural networks."
    )
    cost: ClassVar[str] = (
        "8 minutes on a shared GPU for lenet5, an hour on one CPU core for lenet300"
    )
    needs: ClassVar[tuple[str, ...]] = ("mnist",)
    threads: ClassVar[int | None] = None
    quick_settings: ClassVar[dict[str, Any]] = {
        "epochs": 2,
        "pretrain": 1,
        "retrain": 1,
        "finish": 1,
        "num_train": 300,
        "num_test": 100,
        "num_held_out": 100,
        "nets": "lenet300",
        "levels": 4,
        "rounds": 2,
    }

    drop: float = setting(0.12, "Share of weights that go in a round.", gt=0.0, le=0.9)
    retrain: int = setting(5, "Epochs of the weights that stay, after each round.", ge=0)
    rounds: int = setting(12, "Rounds at most.", ge=1)
    loss: float = setting(
        0.1, "Points of held-out error that the file's network may have above the least.", ge=0.0
    )

    def run(self, device: torch.device, seed: int, say: Say) -> Outcome:
        """One network after another."""
        names, digits = self.names(), self.digits(device)
        done = [self._one(name, digits, device, seed, say) for name in names]
        counts = (
            "error %",
            "sparsity %",
            "weights left",
            "weights, times fewer",
            "all numbers, times fewer",
            "seconds",
        )
        sizes = ("error %", "bytes", "times smaller", "code length + header", "numbers left")
        tables = [
            Table(
                "Weights that are left", counts, [row for one in done for row in one.rows], digits=3
            ),
            Table(
                "Files",
                sizes,
                [one.file for one in done],
                "A file against float32; errors are those of the decoded network.",
            ),
        ]
        figures = [figure for one in done for figure in one.figures]
        return Outcome(tables, figures, [check for one in done for check in one.checks])

    def _one(self, name: str, digits: Digits, device: torch.device, seed: int, say: Say) -> Done:
        case, title, started = CASES[name], NETS[name].title, time.perf_counter()
        net = self.dense(name, digits.train, device, seed)
        dense = error(net, digits.test)
        say(f"{title}: dense {dense:.2f} %, {time.perf_counter() - started:.0f} s")
        film = Film(self.epochs)
        bnn = self.sparse(net, "sparse_vd", digits.train, device, seed, film.frame)
        seconds = time.perf_counter() - started
        first = compress.prune(bnn)
        rows = [
            Row(f"{title}, dense", {"error %": dense}),
            _row(f"{title}, log alpha < 3", self.bare(first), digits, seconds, case),
        ]
        say(f"{rows[-1].label}: {dict(rows[-1].measured)}")
        points = list(self._rounds(bnn, digits, device, say))
        fewest = first.counts[1] / case.compression
        reached = next(
            (pruned for pruned, _ in points if pruned.counts[0] <= fewest), points[-1][0]
        )
        least = min(wrong for _, wrong in points)
        smallest = [pruned for pruned, wrong in points if wrong <= least + self.loss][-1]
        ready = self.finished(reached, bnn, digits.both, device)
        rows.append(
            _row(
                f"{title}, in rounds to the paper's compression",
                ready,
                digits,
                time.perf_counter() - started,
                case,
            )
        )
        if smallest is not reached:
            ready = self.finished(smallest, bnn, digits.both, device)
        rows.append(
            _row(
                f"{title}, as far as held-out images allow",
                ready,
                digits,
                time.perf_counter() - started,
                case,
            )
        )
        for row in rows[2:]:
            say(f"{row.label}: {dict(row.measured)}")
        codes = self.coded(compress.tidy(ready, digits.test[0][:64].cpu()), digits.both, device)
        told, wrong = self.written(name, codes, net, digits.test)
        size = {
            "bytes": told.bytes,
            "times smaller": told.ratio,
            "code length + header": told.code_bits / 8 + told.header_bytes,
        }
        file = Row(title, {"error %": wrong, "numbers left": codes.nonzero} | size)
        say(f"{title}, file: {dict(file.measured)}")
        return Done(
            rows,
            file,
            _checks(title, case, rows[2], file),
            [_figure(title, points), *film.figures(title)],
        )

    def _rounds(
        self, bnn: BNN, digits: Digits, device: torch.device, say: Say
    ) -> Iterator[tuple[Pruned, float]]:
        """Pruned networks with their held-out errors, ever sparser; the first at a log alpha of 0,
        where noise is as large as signal.
        """
        start = compress.prune(bnn, "own", threshold=0.0)
        left = start.counts[0]
        counts = [
            max(1, math.floor(left * (1.0 - self.drop) ** turn)) for turn in range(self.rounds)
        ]
        least = math.inf
        for pruned in compress.shrink(
            start, bnn, digits.train, counts, self.retrain, device=device
        ):
            wrong = error(pruned.net, digits.held_out)
            say(f"round: {pruned.counts[0]} weights, held-out error {wrong:.2f} %")
            yield pruned, wrong
            least = min(least, wrong)
            if wrong > least + 4 * self.loss:
                return  # far beyond what is looked for


class Done(NamedTuple):
    """What one network brings."""

    rows: list[Row]
    file: Row
    checks: list[Check]
    figures: list[dict[str, Any]]


class Film:
    """Pictures of the first layer's filters and of a corner of the largest dense layer, while the
    posterior learns.
    """

    def __init__(self, epochs: int) -> None:
        self.wanted = sorted({max(1, round(share * epochs)) for share in FRAMES})
        self.filters: dict[int, Tensor] = {}
        self.patches: dict[int, Tensor] = {}

    @torch.no_grad()
    def frame(self, epoch: int, posterior: Posterior) -> None:
        """Take one if it is time."""
        if epoch not in self.wanted:
            return
        weights = {
            name: value.detach().abs().cpu()
            for name, value in posterior.mean().items()
            if value.dim() > 1
        }
        filters = next((value for value in weights.values() if value.dim() == 4), None)
        if filters is not None:
            self.filters[epoch] = filters[:, 0]
        largest = max((value for value in weights.values() if value.dim() == 2), key=Tensor.numel)
        self.patches[epoch] = largest[:PATCH, -largest.shape[1] // 2 :][:, :PATCH]

    def figures(self, title: str) -> list[dict[str, Any]]:
        """A row of filters and a patch for every epoch that was pictured."""
        out = []
        if self.filters:
            shown = [f / f.amax().clamp_min(1e-12) for f in self.filters.values()]
            out.append(
                _mosaic(
                    f"{title}: filters of the first layer",
                    torch.stack(shown),
                    [f"epoch {e}" for e in self.filters],
                    [],
                )
            )
        shown = [(p / p.amax().clamp_min(1e-12)).sqrt().unsqueeze(0) for p in self.patches.values()]
        below = [f"epoch {e}" for e in self.patches]
        out.append(
            _mosaic(
                f"{title}: {PATCH} x {PATCH} weights of the largest dense layer",
                torch.stack(shown, 1),
                [],
                below,
            )
        )
        return out


def _mosaic(title: str, pictures: Tensor, rows: list[str], columns: list[str]) -> dict[str, Any]:
    """Pictures ``(rows, columns, H, W)``."""
    down, across, height, width = pictures.shape
    return {
        "kind": "mosaic",
        "title": title,
        "rows": down,
        "columns": across,
        "height": height,
        "width": width,
        "pixels": [round(value, 3) for value in pictures.flatten().tolist()],
        "row_labels": rows,
        "column_labels": columns,
        "caption": "Absolute means, black at zero, white at the largest of each epoch; pruned "
        "weights are zero.",
    }


def _row(label: str, pruned: Pruned, digits: Digits, seconds: float, case: Case) -> Row:
    left, whole = pruned.counts
    measured = {
        "error %": error(pruned.net, digits.test),
        "sparsity %": "-".join(f"{100 * share:.3g}" for share in pruned.sparsity().values()),
        "weights left": left,
        "weights, times fewer": whole / max(left, 1),
        "all numbers, times fewer": compress.tidy(pruned, digits.test[0][:64].cpu()).ratio,
        "seconds": seconds,
    }
    return Row(
        label,
        measured,
        {
            "error %": case.error,
            "sparsity %": case.sparsity,
            "weights, times fewer": case.compression,
        },
    )


def _checks(title: str, case: Case, row: Row, file: Row) -> list[Check]:
    keys = ("error %", "weights, times fewer")
    wrong, fewer = (float(row.measured[key]) for key in keys)  # type: ignore[arg-type]
    decoded, size, smaller, length = (
        float(file.measured[key])  # type: ignore[arg-type]
        for key in ("error %", "bytes", "times smaller", "code length + header")
    )
    most, least = case.file
    return [
        Check(
            f"{title}: error and compression",
            f"{wrong:.2f} % at {fewer:.0f}x",
            f"at most {case.most:.2f} % at {case.compression:.0f}x or more",
            wrong <= case.most and fewer >= case.compression,
        ),
        Check(
            f"{title}: the file",
            f"{decoded:.2f} % at {smaller:.0f}x",
            f"below {most:.1f} % at {least:.0f}x or more",
            decoded < most and smaller >= least,
        ),
        Check(
            f"{title}: the file is as long as its code",
            f"{size:.0f} bytes",
            f"within 2 % of {length:.0f}",
            abs(size - length) <= 0.02 * length,
        ),
    ]


def _figure(title: str, points: list[tuple[Pruned, float]]) -> dict[str, Any]:
    x = [whole / left for left, whole in (pruned.counts for pruned, _ in points)]
    errors = line("weights go in rounds", x, [wrong for _, wrong in points])
    return curves(
        f"{title}: held-out error against compression", "times fewer weights", "error %", [errors]
    )
