"""LeNet-300-100 and LeNet-5-Caffe on MNIST, as the experiments on compression train them: a dense
network, then a sparse posterior from it.

A part of the training images is held out for every choice; the test images are looked at once for
each row. Images are shifted at random in training, by ``shift`` pixels.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.distributions import Normal

from credo import compress
from credo.bnn import BNN
from credo.compress import FileReport, Pruned, Quantised
from credo.core.errors import SettingError
from credo.core.seeds import isolated, mix
from credo.core.settings import setting
from credo.nets import Augmented, CropFlip, lenet5_caffe, lenet_300_100
from credo.posteriors import Posterior
from credo_reproduce.base import Experiment
from credo_reproduce.probes import Pair, images


class Net(NamedTuple):
    """How tables call a network, and how it is made."""

    title: str
    make: Callable[[], nn.Module]


NETS = {
    "lenet300": Net("LeNet-300-100", lenet_300_100),
    "lenet5": Net("LeNet-5-Caffe", lenet5_caffe),
}


class Digits(NamedTuple):
    """Images ``(N, 1, 28, 28)`` with labels: to learn from, held out, both of these, and to
    report.
    """

    train: Pair
    held_out: Pair
    both: Pair
    test: Pair


@dataclass(frozen=True)
class LeNets(Experiment):
    """Settings and steps that the experiments share."""

    nets: str = setting("lenet300,lenet5", "Networks, separated by commas.")
    epochs: int = setting(200, "Epochs of the sparse posterior.", ge=1)
    pretrain: int = setting(15, "Epochs of the network it starts from; 0 for none.", ge=0)
    lr: float = setting(1e-3, "Learning rate.", gt=0.0)
    beta: float = setting(1.0, "Weight of the KL; above 1 fewer weights are left.", gt=0.0)
    shift: int = setting(
        1, "Pixels by which training images are shifted at random; 0 as in the paper.", ge=0
    )
    num_held_out: int = setting(
        5000, "Training images held out for choices.", ge=1, formerly="held"
    )
    num_train: int = setting(60_000, "Training images, held-out ones included.", ge=2)
    num_test: int = setting(10_000, "Test images.", ge=1)
    finish: int = setting(
        20,
        "Epochs, on all training images, of the weights that stay, and of the shared values of a "
        "file.",
        ge=0,
    )
    finish_lr: float = setting(1e-3, "Learning rate of these.", gt=0.0)
    levels: int = setting(16, "Shared values per tensor in the file.", ge=1)
    files: str = setting("", "Folder for the files; none are kept without one.")

    def names(self) -> list[str]:
        """The chosen networks; settings that would fail after the training are refused here."""
        names = [name.strip() for name in self.nets.split(",")]
        if any(name not in NETS for name in names) or self.num_held_out >= self.num_train:
            raise SettingError(
                f"{self.name}: nets={self.nets!r}, num_held_out={self.num_held_out}; expected nets "
                f"of {', '.join(NETS)}, and num_held_out below num_train."
            )
        if self.files and not Path(self.files).is_dir():
            raise SettingError(f"{self.name}: files={self.files!r} is not a folder; make it first.")
        return names

    def digits(self, device: torch.device) -> Digits:
        """The images."""
        (x, y), (tx, ty) = images("mnist", device, self.num_train)
        x, tx = x.reshape(-1, 1, 28, 28), tx.reshape(-1, 1, 28, 28)
        return Digits(
            (x[self.num_held_out :], y[self.num_held_out :]),
            (x[: self.num_held_out], y[: self.num_held_out]),
            (x, y),
            (tx[: self.num_test], ty[: self.num_test]),
        )

    def dense(self, name: str, train: Pair, device: torch.device, seed: int) -> nn.Module:
        """A plain network on the CPU, trained."""
        with isolated(mix(seed, "net")):
            net = NETS[name].make()
        if self.pretrain:
            bnn = BNN(self.shifted(net), "categorical", prior=Normal(0.0, 1.0))
            bnn.fit(train, "map", epochs=self.pretrain, lr=1e-3, **_terms(device, seed))
            self.shifted(net).load_state_dict({n: v.cpu() for n, v in bnn.posterior.mean().items()})
        return net.eval()

    def sparse(
        self,
        net: nn.Module,
        method: str,
        train: Pair,
        device: torch.device,
        seed: int,
        watch: Callable[[int, Posterior], None] | None = None,
    ) -> BNN:
        """The posterior that starts from a network; ``watch`` sees it after every epoch, counted
        from 1.
        """
        bnn = BNN(self.shifted(net), "categorical")
        callbacks = [] if watch is None else [lambda row: watch(row["epoch"] + 1, bnn.posterior)]
        return bnn.fit(
            train,
            method,
            epochs=self.epochs,
            lr=self.lr,
            beta=self.beta,
            callbacks=callbacks,
            **_terms(device, seed),
        )

    def finished(self, pruned: Pruned, bnn: BNN, data: Pair, device: torch.device) -> Pruned:
        """What is left, trained on; held-out images may be among the data, since nothing is chosen
        by them any more.
        """
        tuned = compress.fine_tune(pruned, bnn, data, self.finish, lr=self.finish_lr, device=device)
        return self.bare(tuned)

    def coded(self, pruned: Pruned, data: Pair, device: torch.device) -> Quantised:
        """With few values in place of weights, these trained too."""
        codes, bnn = compress.quantise(pruned, levels=self.levels), BNN(pruned.net, "categorical")
        return compress.tune_books(
            codes, pruned.net, bnn, data, self.finish, lr=self.finish_lr, device=device
        )

    def written(
        self, stem: str, codes: Quantised, net: nn.Module, data: Pair
    ) -> tuple[FileReport, float]:
        """The file of these codes, and the error in per cent of the network that is read from
        it.
        """
        with tempfile.TemporaryDirectory() as nowhere:
            path = Path(self.files or nowhere) / f"{stem}.credo"
            told = compress.encode(codes, path, net=net)
            return told, error(compress.decode(path, net), data)

    def shifted(self, net: nn.Module) -> nn.Module:
        """The network behind random shifts."""
        return Augmented(net, CropFlip(self.shift, flip=False)) if self.shift else net

    def bare(self, pruned: Pruned) -> Pruned:
        """Without the module that shifts images, if there is one."""
        if not self.shift:
            return pruned
        masks, std = (
            {n.removeprefix("net."): t for n, t in table.items()}
            for table in (pruned.masks, pruned.std)
        )
        return replace(pruned, net=pruned.net.get_submodule("net"), masks=masks, std=std)


def error(net: nn.Module, data: Pair) -> float:
    """Of a plain network, in per cent."""
    return 100.0 * (1.0 - compress.score(net, BNN(net, "categorical"), data)["accuracy"])


def _terms(device: torch.device, seed: int) -> dict[str, Any]:
    graph = "graph" if device.type == "cuda" else False
    return {"device": device, "progress": False, "seed": seed, "batch_size": 100, "compile": graph}
