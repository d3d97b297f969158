"""Sparse variational dropout of ResNet-50 at ImageNet's size: the recipe, and what a step of it
costs.

Training steps on made-up images of 224 x 224 pixels, the deterministic network beside sparse
variational dropout of all its convolutions and its last layer, in turn, the least time of each.
Hours of a whole training follow from them by counting steps. ImageNet itself is not part of it: no
accuracy and no sparsity is measured, and none is claimed. Reading and augmenting images is not in
the times.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Normal

from credo.bnn import BNN
from credo.core.seeds import generator, isolated, mix
from credo.core.settings import setting
from credo.data.intake import intake
from credo.engine.elbo import Elbo
from credo.engine.fit_job import FitJob
from credo.engine.model import Model
from credo.engine.step import adam, make_step
from credo.estimators import estimators
from credo.methods import SparseVDMethod
from credo.nets import resnet50
from credo_reproduce.base import Experiment, Say, experiments
from credo_reproduce.outcome import Check, Outcome, Row, Table, Value

IMAGES, EPOCHS, CLASSES = (
    1_281_167,
    90,
    1000,
)  # of ImageNet's training set, and of the usual training on it
MOST = 4.0  # times the deterministic step
GIB = 2**30

Pair = tuple[Tensor, Tensor]


class Contestant(NamedTuple):
    """A training step that is ready to be repeated, and the memory that making it and the first
    steps took at most, in bytes.
    """

    step: Callable[[], tuple[Tensor, Tensor]]
    random: int
    peak: int | None


@experiments.register("sparse_resnet50")
@dataclass(frozen=True)
class SparseResNet50(Experiment):
    """Two steps, timed in turn."""

    name: ClassVar[str] = "sparse_resnet50"
    title: ClassVar[str] = "A step of sparse variational dropout of ResNet-50 at ImageNet's size"
    reference: ClassVar[str] = (
        "Gale, Elsen and Hooker 2019, The state of sparsity in deep neural networks."
    )
    cost: ClassVar[str] = "half a minute on a GPU"
    threads: ClassVar[int | None] = None
    quick_settings: ClassVar[dict[str, Any]] = {
        "width": 8,
        "size": 32,
        "batch": 2,
        "steps": 2,
        "rounds": 1,
    }

    width: int = setting(64, "Channels of the first layer; 64 is ResNet-50.", ge=1)
    size: int = setting(224, "Height and width of the images.", ge=32)
    batch: int = setting(128, "Images in a step, at least 2 for the batch normalisation.", ge=2)
    steps: int = setting(10, "Steps that are timed together.", ge=1)
    rounds: int = setting(10, "How often each is timed; the least time counts.", ge=1)
    lr: float = setting(1e-4, "Learning rate.", gt=0.0)

    def run(self, device: torch.device, seed: int, say: Say) -> Outcome:
        """Make both, then time them in turn."""
        source = generator(seed, "images")
        x = torch.randn(self.batch, 3, self.size, self.size, generator=source).to(device)
        y = torch.randint(0, CLASSES, (self.batch,), generator=source).to(device)
        with isolated(mix(seed, "noise"), device):
            made = {
                name: self._contestant(make, (x, y), seed, device) for name, make in MAKERS.items()
            }
            say(f"ready: {made['sparse_vd'].random:,} random weights")
            times, finite = self._times(
                {name: each.step for name, each in made.items()}, device, say
            )
        return self._outcome(made, times, finite)

    def _contestant(
        self, make: Callable[[Model, FitJob], Elbo], data: Pair, seed: int, device: torch.device
    ) -> Contestant:
        """A step as ``fit`` runs it: on a GPU one CUDA graph.

        Three steps are run, which plan, allocate and capture.
        """
        before = _reset_peak(device)
        with isolated(mix(seed, "net")):
            bnn = BNN(
                resnet50(CLASSES, width=self.width).to(device),
                "categorical",
                prior=Normal(0.0, 1.0),
            )
        fit_job = FitJob(
            intake(data, num_data=IMAGES), epochs=1, batch_size=None, lr=self.lr, seed=seed
        )
        elbo = make(bnn.model, fit_job)
        lr = torch.tensor(self.lr, device=device) if device.type == "cuda" else self.lr
        step = make_step(
            elbo, adam(elbo, lr, IMAGES), IMAGES, "graph" if device.type == "cuda" else False
        )
        elbo.model.shell().train(True)
        run = lambda: step(*data, 1.0)  # noqa: E731
        for _ in range(3 if device.type == "cuda" else 1):
            run()
        random = sum(site.numel for site in elbo.model.random.values())
        return Contestant(
            run,
            random,
            None if before is None else torch.cuda.max_memory_allocated(device) - before,
        )

    def _times(
        self, steps: dict[str, Callable[[], tuple[Tensor, Tensor]]], device: torch.device, say: Say
    ) -> tuple[dict[str, float], dict[str, bool]]:
        """Least seconds of a step, and whether nll and KL were finite at the end of every round.

        Each round times every contestant once, so that a machine that drifts drifts for both.
        """
        sync = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)
        least, finite = dict.fromkeys(steps, math.inf), dict.fromkeys(steps, True)
        for round_ in range(self.rounds):
            for name, step in steps.items():
                sync()
                started, parts = time.perf_counter(), ()
                for _ in range(self.steps):
                    parts = step()
                sync()
                least[name] = min(least[name], (time.perf_counter() - started) / self.steps)
                finite[name] &= all(bool(part.isfinite()) for part in parts)
            said = ", ".join(f"{name} {1e3 * seconds:.1f} ms" for name, seconds in least.items())
            say(f"round {round_ + 1} of {self.rounds}: {said}")
        return least, finite

    def _outcome(
        self, made: dict[str, Contestant], times: dict[str, float], finite: dict[str, bool]
    ) -> Outcome:
        base = times["map"]
        rows = []
        for name, seconds in times.items():
            peak = made[name].peak
            measured: dict[str, Value] = {
                "ms per step": 1e3 * seconds,
                "images per second": self.batch / seconds,
                "times the deterministic step": seconds / base,
                "peak memory, GiB": None if peak is None else peak / GIB,
                "hours for 90 epochs": hours(seconds, self.batch),
                "accuracy %": "not run",
            }
            rows.append(Row(LABELS[name], measured))
        note = (
            f"Made-up images of {self.size} x {self.size} pixels, {self.batch} in a step. "
            "Accuracy and sparsity on ImageNet were "
            f"not run. Hours are counted: {EPOCHS} epochs of {IMAGES:,} images at the measured "
            "step, without reading them."
        )
        ratio, bad = times["sparse_vd"] / base, [name for name, fine in finite.items() if not fine]
        checks = [
            Check(
                "sparse_vd against the deterministic step",
                f"{ratio:.2f} times",
                f"at most {MOST:g} times",
                ratio <= MOST,
            ),
            Check(
                "objectives stay finite",
                f"{len(finite) - len(bad)} of {len(finite)}",
                "all",
                not bad,
            ),
        ]
        columns = tuple(rows[0].measured)
        return Outcome([Table("Training steps of ResNet-50", columns, rows, note)], [], checks)


def _deterministic(model: Model, fit_job: FitJob) -> Elbo:
    """As ``map`` has it: point estimates under the prior."""
    return Elbo(model, model.point_posterior(model.values()), estimators["weights"])


def _sparse(model: Model, fit_job: FitJob) -> Elbo:
    """As ``sparse_vd`` has it: weights are random, scales and biases points, noise is local."""
    method = SparseVDMethod()
    model = method.adapt(model)
    return Elbo(model, method.posterior(model, model.values()), estimators[method.estimator])


MAKERS: dict[str, Callable[[Model, FitJob], Elbo]] = {"map": _deterministic, "sparse_vd": _sparse}
LABELS = {"map": "deterministic (map)", "sparse_vd": "sparse variational dropout"}


def hours(seconds: float, batch: int) -> float:
    """Of the usual training on ImageNet, at so many seconds a step."""
    return EPOCHS * math.ceil(IMAGES / batch) * seconds / 3600.0


def _reset_peak(device: torch.device) -> int | None:
    """Bytes in use now, after which the peak is counted anew; None without a GPU."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)
