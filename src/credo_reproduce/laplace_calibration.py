"""What Laplace's approximation adds to a trained residual network on CIFAR-10, without retraining:
calibration.

A network with 20 layers is trained once, as in the ``ensembles`` experiment (SGD with momentum,
weight decay 5e-4), on all of the 20,000 images but those held out. Each row then puts a Gaussian
around the very same weights, from one pass over the training images without augmentation, chooses
the prior's width by the evidence of the training images or by the predictions of the held-out ones,
and predicts by the linearised network.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn
from torch.distributions import Normal

from credo.bnn import BNN
from credo.core.errors import SettingError
from credo.core.seeds import isolated, mix
from credo.core.settings import setting
from credo.likelihoods import Categorical
from credo.nets import Augmented, CropFlip, resnet
from credo.predictive import Predictive
from credo_reproduce.base import Experiment, Say, experiments, graph_on
from credo_reproduce.ensembles import Score
from credo_reproduce.outcome import Check, Outcome, Row, Table
from credo_reproduce.probes import Pair, colour_images

#: label -> settings of ``laplace``; "layers": convolutions and the last layer, without the scales
#: of the normalisation
ROWS: dict[str, dict[str, Any]] = {
    "last layer, full": {"subset": "last", "structure": "full"},
    "last layer, KFAC": {"subset": "last", "structure": "kfac"},
    "all layers, KFAC": {"subset": "layers", "structure": "kfac"},
    "all layers, KFAC, a prior per layer": {
        "subset": "layers",
        "structure": "kfac",
        "per": "layer",
    },
    "last layer, full, by validation": {
        "subset": "last",
        "structure": "full",
        "tune": "validation",
    },
    "all layers, KFAC, by validation": {
        "subset": "layers",
        "structure": "kfac",
        "tune": "validation",
    },
    "all layers, diagonal": {"subset": "layers", "structure": "diagonal"},
}


@experiments.register("laplace_calibration")
@dataclass(frozen=True)
class LaplaceCalibration(Experiment):
    """One network, and Gaussians around it."""

    name: ClassVar[str] = "laplace_calibration"
    title: ClassVar[str] = "Laplace's approximation of a trained residual network on CIFAR-10"
    reference: ClassVar[str] = (
        "Daxberger et al. 2021, Laplace redux; Ritter et al. 2018; Immer et al. 2021."
    )
    cost: ClassVar[str] = "4 minutes on a GPU"
    needs: ClassVar[tuple[str, ...]] = ("cifar10",)
    threads: ClassVar[int | None] = None
    quick_settings: ClassVar[dict[str, Any]] = {
        "epochs": 1,
        "depth": 8,
        "width": 4,
        "num_train": 120,
        "num_test": 60,
        "num_held_out": 20,
        "batch": 40,
    }

    epochs: int = setting(40, "Passes over the training images.", ge=1)
    depth: int = setting(20, "Layers, 6 n + 2.", ge=8)
    width: int = setting(16, "Channels of the first stage.", ge=1)
    batch: int = setting(128, "Images in a step.", ge=1)
    lr: float = setting(0.1, "Learning rate of SGD with momentum 0.9.", gt=0.0)
    decay: float = setting(5e-4, "Weight decay, as a prior of variance 1 / (decay N).", gt=0.0)
    samples: int = setting(200, "Points that stand for a linearised prediction.", ge=2)
    num_train: int = setting(20_000, "Training images, held-out ones included.", ge=2)
    num_held_out: int = setting(
        1000,
        "Images held out of training, by which the rows that say so choose the prior's width.",
        ge=1,
        formerly="held",
    )
    num_test: int = setting(10_000, "Test images.", ge=1)

    def run(self, device: torch.device, seed: int, say: Say) -> Outcome:
        """Train once, then measure."""
        if self.num_held_out >= self.num_train:
            raise SettingError(
                f"num_held_out={self.num_held_out}: fewer images than num_train={self.num_train} "
                "can be held out."
            )
        images, test = colour_images("cifar10", device, self.num_train, self.num_test)
        train, held_out = [
            (images[0][part], images[1][part])
            for part in (slice(self.num_held_out, None), slice(self.num_held_out))
        ]
        started = time.perf_counter()
        net = self._trained(train, seed, device)
        trained = time.perf_counter() - started
        with torch.no_grad():
            outputs = torch.cat([net(x) for x in test[0].split(500)])
        scores = {"the network": Score.of(Predictive(outputs.unsqueeze(0), Categorical()), test[1])}
        rows = [_row("the network", scores["the network"], 0.0, None, trained)]
        say(f"the network: {_text(scores['the network'])}, trained in {trained:.0f} s")
        for label, settings in ROWS.items():
            started = time.perf_counter()
            bnn = self._around(net, settings, train, held_out, device)
            seconds = time.perf_counter() - started
            predictive = bnn.predict(test[0], self.samples, batch_size=500)
            scores[label] = score = Score.of(predictive, test[1])
            rows.append(
                _row(
                    label, score, seconds, bnn.history[-1]["log_evidence"] / len(train[1]), trained
                )
            )
            say(f"{label}: {_text(score)}, {seconds:.1f} s")
        return Outcome([_table(rows)], [], _checks(scores))

    def _prior(self, count: int) -> Normal:
        return Normal(0.0, (self.decay * count) ** -0.5)

    def _trained(self, train: Pair, seed: int, device: torch.device) -> nn.Module:
        """A plain network with trained weights and statistics, in evaluation mode: what a user
        would bring.
        """
        with isolated(mix(seed, "net")):
            net = resnet(10, self.depth, self.width)
        bnn = BNN(Augmented(net, CropFlip()), prior=self._prior(len(train[1])))
        bnn.fit(
            train,
            "deep_ensemble",
            num_members=1,
            epochs=self.epochs,
            batch_size=self.batch,
            lr=self.lr,
            seed=seed,
            device=device,
            init="random",
            optimizer="sgd",
            momentum=0.9,
            progress=False,
            compile=graph_on(device),
        )
        whole = Augmented(net, CropFlip())
        whole.load_state_dict(
            bnn.posterior.mean() | dict(bnn.buffers)
        )  # all of them, statistics included
        return net.to(device).eval()

    def _around(
        self,
        net: nn.Module,
        settings: dict[str, Any],
        train: Pair,
        held_out: Pair,
        device: torch.device,
    ) -> BNN:
        given = dict(settings)
        if given["subset"] == "layers":
            paths = [
                path
                for path, module in net.named_modules()
                if isinstance(module, (nn.Conv2d, nn.Linear))
            ]
            given["subset"] = tuple(f"{path}.*" for path in paths)
        bnn = BNN(net, prior=self._prior(len(train[1])))
        if given.get("tune") == "validation":
            given["validation"] = held_out
        return bnn.fit(train, "laplace", train=False, device=device, progress=False, **given)


def _text(score: Score) -> str:
    return f"error {score.error:.2f} %, nll {score.nll:.4f}, ece {score.ece:.4f}"


def _row(label: str, score: Score, seconds: float, evidence: float | None, trained: float) -> Row:
    measured = {
        "error %": score.error,
        "nll": score.nll,
        "ece": score.ece,
        "log evidence per image": evidence,
    }
    return Row(label, measured | {"seconds": seconds, "share of training": seconds / trained})


def _table(rows: list[Row]) -> Table:
    columns = ("error %", "nll", "ece", "log evidence per image", "seconds", "share of training")
    note = (
        "Seconds are those of curvature and prior width, after training; the last column compares "
        "them with the training itself."
    )
    return Table("One trained network, and Gaussians around it", columns, rows, note, digits=4)


def _checks(scores: dict[str, Score]) -> list[Check]:
    point = scores["the network"]
    best = min((score.nll, label) for label, score in scores.items() if label != "the network")
    calibrated = min(
        (score.ece, label) for label, score in scores.items() if label != "the network"
    )
    return [
        Check(
            "nll",
            f"{best[0]:.4f} ({best[1]})",
            f"below the network's {point.nll:.4f}",
            best[0] < point.nll,
        ),
        Check(
            "calibration error",
            f"{calibrated[0]:.4f} ({calibrated[1]})",
            f"below the network's {point.ece:.4f}",
            calibrated[0] < point.ece,
        ),
    ]
