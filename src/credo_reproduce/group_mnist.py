"""Group sparsity on MNIST: which units LeNet-300-100 and LeNet-5-Caffe keep, how many bits their
weights need, and the file that makes.

Louizos et al.'s three counts: of weights in the units that are left ("pruning"), of their bits when
every layer is stored with the precision that the posterior asks for ("fast prediction"), and of the
bytes of an entropy-coded file with shared values ("maximum compression").
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from credo import compress
from credo.compress import Pruned
from credo.core.errors import SettingError
from credo.core.settings import setting
from credo_reproduce.base import Say, experiments
from credo_reproduce.lenets import NETS, Digits, LeNets, error
from credo_reproduce.outcome import Check, Outcome, Row, Table

TITLES = {"group_normal_jeffreys": "normal-Jeffreys", "group_horseshoe": "horseshoe"}
THRESHOLDS = (3.0, 2.8, 2.6, 2.4, 2.2, 2.0, 1.5, 1.0, 0.0)

#: (network, method) -> the paper's table
PAPER: dict[tuple[str, str], dict[str, Any]] = {
    ("lenet300", "group_normal_jeffreys"): {
        "error %": 1.8,
        "units": "278-98-13",
        "bits": "8-9-14",
        "pruning": 9.0,
        "fast prediction": 36.0,
        "maximum compression": 58.0,
    },
    ("lenet300", "group_horseshoe"): {
        "error %": 1.8,
        "units": "311-86-14",
        "bits": "13-11-10",
        "pruning": 9.0,
        "fast prediction": 23.0,
        "maximum compression": 59.0,
    },
    ("lenet5", "group_normal_jeffreys"): {
        "error %": 1.0,
        "units": "8-13-88-13",
        "pruning": 108.0,
        "fast prediction": 361.0,
    },
    ("lenet5", "group_horseshoe"): {
        "error %": 1.0,
        "units": "5-10-76-16",
        "pruning": 156.0,
        "fast prediction": 419.0,
        "maximum compression": 771.0,
    },
}


@experiments.register("group_mnist")
@dataclass(frozen=True)
class GroupMNIST(LeNets):
    """Units instead of single weights."""

    name: ClassVar[str] = "group_mnist"
    title: ClassVar[str] = "Group sparsity on MNIST: units, bits and bytes"
    reference: ClassVar[str] = (
        "Louizos, Ullrich and Welling 2017, Bayesian compression for deep learning."
    )
    cost: ClassVar[str] = "7 minutes on a shared GPU for each network and method"
    needs: ClassVar[tuple[str, ...]] = ("mnist",)
    threads: ClassVar[int | None] = None
    quick_settings: ClassVar[dict[str, Any]] = {
        "epochs": 2,
        "pretrain": 1,
        "finish": 1,
        "num_train": 300,
        "num_test": 100,
        "num_held_out": 100,
        "nets": "lenet300",
        "levels": 4,
    }

    methods: str = setting("group_normal_jeffreys,group_horseshoe", "Methods, separated by commas.")
    epochs: int = setting(100, "Epochs of the sparse posterior.", ge=1)
    lr: float = setting(2e-3, "Learning rate.", gt=0.0)
    finish: int = setting(
        25,
        "Epochs, on all training images, of the weights that stay, and of the shared values of a "
        "file.",
        ge=0,
    )
    levels: int = setting(24, "Shared values per tensor in the file.", ge=1)
    slack: float = setting(0.1, "Points of held-out error that fewer units may cost.", ge=0.0)

    def run(self, device: torch.device, seed: int, say: Say) -> Outcome:
        """Every network with every method."""
        names, chosen = self.names(), [name.strip() for name in self.methods.split(",")]
        if any(method not in TITLES for method in chosen):
            raise SettingError(
                f"group_mnist: methods={self.methods!r}; expected {' or '.join(TITLES)}, or both "
                "with a comma."
            )
        digits = self.digits(device)
        rows, checks = [], []
        for name in names:
            net = self.dense(name, digits.train, device, seed)
            rows.append(Row(f"{NETS[name].title}, dense", {"error %": error(net, digits.test)}))
            for method in chosen:
                row = self._one(name, method, net, digits, device, seed)
                rows.append(row)
                checks.append(_check(row))
                say(f"{row.label}: {dict(row.measured)}")
        columns = (
            "error %",
            "held-out error %",
            "units",
            "bits",
            "pruning",
            "fast prediction",
            "maximum compression",
            "error of the file %",
            "seconds",
        )
        note = (
            "Held-out errors are those before the last training, on all images, of what is left. "
            "Units: inputs of every dense layer, filters of every convolution, that are left. The "
            "three counts are times fewer: weights, bits at "
            "each layer's precision, bytes of the file."
        )
        return Outcome([Table("What groups leave", columns, rows, note)], [], checks)

    def _one(
        self,
        name: str,
        method: str,
        net: torch.nn.Module,
        digits: Digits,
        device: torch.device,
        seed: int,
    ) -> Row:
        started = time.perf_counter()
        bnn = self.sparse(net, method, digits.train, device, seed)
        curve = compress.curve(bnn, digits.held_out, at=THRESHOLDS)
        best = curve.best(self.slack / 100)
        held_out = next(100 * point.error for point in curve.points if point.pruned is best)
        tidy = compress.tidy(
            self.finished(best, bnn, digits.both, device), digits.test[0][:64].cpu()
        )
        left = {key: int(mask.sum()) for key, mask in tidy.masks.items()}
        bits = {key: found.bits for key, found in compress.precision(tidy).items() if key in left}
        weights, total = tidy.counts
        told, decoded = self.written(
            f"{name}_{method}", self.coded(tidy, digits.both, device), net, digits.test
        )
        measured = {
            "error %": error(tidy.net, digits.test),
            "held-out error %": held_out,
            "units": "-".join(map(str, units(tidy))),
            "bits": "-".join(map(str, bits.values())),
            "pruning": total / max(weights, 1),
            "fast prediction": 32
            * total
            / max(sum(left[key] * bits.get(key, 32) for key in left), 1),
            "maximum compression": told.ratio,
            "error of the file %": decoded,
            "seconds": time.perf_counter() - started,
        }
        return Row(f"{NETS[name].title}, {TITLES[method]}", measured, PAPER[name, method])


def units(pruned: Pruned) -> list[int]:
    """Filters of every convolution and inputs of every dense layer that have a weight left."""
    return [
        int((mask.flatten(1).any(1) if mask.dim() > 2 else mask.any(0)).sum())
        for mask in pruned.masks.values()
    ]


def _check(row: Row) -> Check:
    """At the paper's error the paper's compression, or better."""
    wrong, fewer = (float(row.measured[key]) for key in ("error %", "pruning"))  # type: ignore
    most, least = row.paper["error %"], row.paper["pruning"]
    assert isinstance(most, float) and isinstance(least, float)
    return Check(
        row.label,
        f"{wrong:.2f} % at {fewer:.0f}x",
        f"at most {most:.1f} % at {least:.0f}x or more",
        wrong < most + 0.05 and fewer >= least,
    )
