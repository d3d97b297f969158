"""Overfitting under five regularisers (Graves 2011): none, L1, L2, fixed weight noise, adaptive
weight noise.

A point estimate under a Laplace prior is L1, under a normal prior L2; weight noise is a posterior
of fixed deviation without a prior; adaptive weight noise learns every deviation under the optimal
normal prior of each layer. The source trained recurrent networks on TIMIT until the validation
error rose; that corpus is not free, so the same five are run here on a few images, some with a
wrong label, with a small perceptron. What is repeated is the pattern (who overfits, who does not),
not the numbers. Adaptive noise starts with a rising weight of the KL: with all of it from the first
step the optimal prior shrinks onto zero together with the weights, before they fit anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Laplace, Normal

from credo.bnn import BNN
from credo.core.seeds import generator, isolated, mix
from credo.core.settings import setting
from credo.nets import mlp
from credo_reproduce.base import Experiment, Say, experiments
from credo_reproduce.outcome import Check, Outcome, Row, Table
from credo_reproduce.plots import curves, line
from credo_reproduce.probes import digits, images

SHARE = 0.25  # of the unregularised rise, below which a regulariser counts as not overfitting
Pair = tuple[Tensor, Tensor]


class Losses(NamedTuple):
    """Training and validation nll per datum by epoch, and the final validation error in percent."""

    train: list[float]
    validation: list[float]
    error: float

    @property
    def rise(self) -> float:
        """How far the validation nll ends above its best."""
        return self.validation[-1] - min(self.validation)


def _digits(count: int, seed: int) -> tuple[Pair, Pair]:
    (x, y), held_out = digits(seed, 1000)
    return (x[:count], y[:count]), held_out


def _mnist(count: int, seed: int) -> tuple[Pair, Pair]:
    train, (x, y) = images("mnist", torch.device("cpu"), count)
    return train, (x[:2000], y[:2000])


SOURCES: dict[str, Callable[[int, int], tuple[Pair, Pair]]] = {"digits": _digits, "mnist": _mnist}


@experiments.register("graves")
@dataclass(frozen=True)
class Graves(Experiment):
    """Training and validation curves of five regularisers."""

    name: ClassVar[str] = "graves"
    title: ClassVar[str] = "Weight noise against overfitting: five regularisers"
    reference: ClassVar[str] = (
        "Graves 2011, Practical variational inference for neural networks (there on TIMIT)."
    )
    cost: ClassVar[str] = "2 minutes on one CPU core"
    needs: ClassVar[tuple[str, ...]] = ("digits",)
    quick_settings: ClassVar[dict[str, Any]] = {
        "num_train": 50,
        "hidden": 8,
        "epochs": 3,
        "runs": 2,
    }

    data: str = setting("digits", "Embedded 8 x 8 digits, or MNIST.", choices=tuple(SOURCES))
    num_train: int = setting(800, "Training images.", ge=10)
    hidden: int = setting(30, "Units of the hidden layer.", ge=1)
    epochs: int = setting(200, "Passes over the training images.", ge=1)
    lr: float = setting(1e-2, "Learning rate.", gt=0.0)
    runs: int = setting(
        3,
        "Splits, label draws and initial weights over which the table is averaged; the first is "
        "drawn.",
        ge=1,
    )
    label_noise: float = setting(
        0.2, "Share of training images whose label is drawn at random.", ge=0.0, le=1.0
    )
    laplace: float = setting(0.5, "Scale of the Laplace prior (L1).", gt=0.0)
    normal: float = setting(0.5, "Standard deviation of the normal prior (L2).", gt=0.0)
    noise: float = setting(
        0.075, "Standard deviation of fixed weight noise; where adaptive noise starts.", gt=0.0
    )
    warmup: int = setting(
        50, "Epochs over which the KL of adaptive noise rises to its full weight.", ge=0
    )

    def run(self, device: torch.device, seed: int, say: Say) -> Outcome:
        """Five fits per split, watched after every epoch."""
        found: dict[str, list[Losses]] = {label: [] for label in self.kinds()}
        for place in range(seed, seed + self.runs):
            (x, y), held_out = SOURCES[self.data](self.num_train, place)
            train = x, _spoiled(y, self.label_noise, generator(place, "labels"))
            for label, (method, prior, settings) in self.kinds().items():
                say(f"split {place}: {label}")
                found[label].append(
                    self.fit(train, held_out, method, prior, settings, device, place)
                )
        return Outcome(
            [_table(found)],
            _figures({label: losses[0] for label, losses in found.items()}),
            _checks(found),
        )

    def kinds(self) -> dict[str, tuple[str, Any, dict[str, Any]]]:
        """Method, prior and settings of each row."""
        rising = {"estimator": "local", "kl_schedule": "linear", "kl_warmup": self.warmup}
        return {
            "none": ("mle", None, {}),
            "L1": ("map", Laplace(0.0, self.laplace), {}),
            "L2": ("map", Normal(0.0, self.normal), {}),
            "weight noise": ("weight_noise", None, {"init_std": self.noise}),
            "adaptive weight noise": (
                "weight_noise",
                None,
                {"init_std": self.noise, "adaptive": True} | rising,
            ),
        }

    def fit(
        self,
        train: Pair,
        held_out: Pair,
        method: str,
        prior: Any,
        settings: dict[str, Any],
        device: torch.device,
        seed: int,
    ) -> Losses:
        """One regulariser from the same initial weights."""
        with isolated(mix(seed, "net")):
            net = mlp(train[0].shape[1], (self.hidden,), 10)
        bnn = BNN(net, "categorical", prior=prior)
        common = {
            "epochs": self.epochs,
            "batch_size": 50,
            "lr": self.lr,
            "lr_schedule": "constant",
            "progress": False,
        }
        bnn.fit(train, method, validation=held_out, seed=seed, device=device, **common, **settings)
        history = bnn.history
        error = 100.0 * (1.0 - bnn.evaluate(held_out, num_samples=50)["accuracy"])
        return Losses(
            [row["nll"] / len(train[1]) for row in history],
            [row["validation_nll"] for row in history],
            error,
        )


def _spoiled(y: Tensor, share: float, source: torch.Generator) -> Tensor:
    """Labels of which about ``share`` are drawn anew from ten classes."""
    wrong = torch.rand(y.shape, generator=source) < share
    return torch.where(wrong, torch.randint(10, y.shape, generator=source), y)


def _mean(losses: list[Losses], value: Callable[[Losses], float]) -> float:
    return sum(map(value, losses)) / len(losses)


def _table(found: dict[str, list[Losses]]) -> Table:
    columns: dict[str, Callable[[Losses], float]] = {
        "train nll": lambda fit: fit.train[-1],
        "best validation nll": lambda fit: min(fit.validation),
        "final validation nll": lambda fit: fit.validation[-1],
        "rise": lambda fit: fit.rise,
        "validation error %": lambda fit: fit.error,
    }
    rows = [
        Row(label, {name: _mean(losses, value) for name, value in columns.items()})
        for label, losses in found.items()
    ]
    note = "rise: final less best validation nll. Means over splits; the figures show the first."
    return Table("Best and final validation loss, nats per image", list(columns), rows, note)


def _figures(found: dict[str, Losses]) -> list[dict[str, Any]]:
    figures = []
    for part, caption in _CAPTIONS.items():
        losses = {label: getattr(fit, part) for label, fit in found.items()}
        lines = [line(label, range(1, len(y) + 1), y) for label, y in losses.items()]
        title, label = f"{part} loss", "nll (nats per image)"
        figures.append(curves(title, "epoch", label, lines, log_y=True, caption=caption))
    return figures


_CAPTIONS = {
    "train": "With weight noise the training loss is that of noisy weights, so it stays higher.",
    "validation": "A curve that turns upwards overfits.",
}


def _checks(found: dict[str, list[Losses]]) -> list[Check]:
    rises = {label: _mean(losses, lambda fit: fit.rise) for label, losses in found.items()}
    worst, least = (
        max(rises, key=lambda label: rises[label]),
        min(rises, key=lambda label: rises[label]),
    )
    adaptive, free = rises["adaptive weight noise"], rises["none"]
    told = f"smallest rise: {least} ({rises[least]:.3f} nats), adaptive {adaptive:.3f}"
    part = (
        f"{adaptive / free:.2f} of the unregularised rise"
        if free > 0
        else "no rise without a regulariser"
    )
    return [
        Check(
            "unregularised overfits most",
            f"largest rise: {worst} ({rises[worst]:.3f} nats)",
            "none",
            worst == "none",
        ),
        Check(
            "adaptive weight noise overfits least",
            told,
            "adaptive weight noise",
            least == "adaptive weight noise",
        ),
        Check(
            "adaptive weight noise hardly overfits", part, f"below {SHARE}", adaptive < SHARE * free
        ),
    ]
