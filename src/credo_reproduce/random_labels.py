"""Labels drawn at random: sparse variational dropout gives up all weights, a network with binary
dropout learns the labels by heart.

Both see the same images and the same labels, in which there is nothing to learn. That sparse
variational dropout prefers the empty network, and is not just stuck there, is shown in bits, -ELBO
/ ln 2: what the labels cost given the weights, and what the weights cost, KL[q, p] / ln 2. The
empty network pays log2 10 bits a label and nothing for weights. For a memorising one, Gaussians are
put around the weights of the network that was trained with binary dropout, under a KL that counts
little, so that they find out which of its weights are needed and how exactly. With a KL that counts
fully the same start must end empty too. The log-uniform prior is improper: bits of weights are
those above a weight that is all noise.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn

from credo import compress
from credo.bnn import BNN
from credo.core.errors import SettingError
from credo.core.seeds import generator, isolated, mix
from credo.core.settings import setting
from credo.nets import mlp, vgg
from credo_reproduce.base import Experiment, Say, experiments, graph_on
from credo_reproduce.message_length import Length, label_bits, model_bits
from credo_reproduce.outcome import Check, Outcome, Row, Table
from credo_reproduce.plots import curves, line
from credo_reproduce.probes import Pair, colour_images, images
from credo_reproduce.sparse_vgg import accuracy, numbers, with_batch_statistics

CLASSES = 10
LEARNED = 90.0  # per cent of the training labels from which they count as learned by heart
TITLES = {"mnist_fc": "MNIST, dense", "cifar_vgg": "CIFAR-10, VGG"}
#: Molchanov et al., section 5.5, accuracies and sparsity in per cent
PAPER = {"train accuracy %": 10.0, "test accuracy %": 10.0, "sparsity %": 100.0}
PAPER_DROPOUT = {"train accuracy %": 100.0, "test accuracy %": 10.0}


class Case(NamedTuple):
    """Images with random labels, test images with their own, and what one network brings of rows,
    figures and checks.
    """

    name: str
    train: Pair
    test: Pair

    @property
    def empty(self) -> float:
        """Bits of the labels if all are as likely."""
        return len(self.train[1]) * math.log2(CLASSES)


@experiments.register("random_labels")
@dataclass(frozen=True)
class RandomLabels(Experiment):
    """Nothing to learn: who learns it by heart?"""

    name: ClassVar[str] = "random_labels"
    title: ClassVar[str] = (
        "Random labels: sparse variational dropout against learning by heart, in bits"
    )
    reference: ClassVar[str] = (
        "Molchanov, Ashukha and Vetrov 2017, Variational dropout sparsifies deep neural networks, "
        "section 5.5; "
        "Zhang et al. 2017, Understanding deep learning requires rethinking generalization."
    )
    cost: ClassVar[str] = "6 minutes on a shared GPU for each network"
    needs: ClassVar[tuple[str, ...]] = ("mnist", "cifar10")
    threads: ClassVar[int | None] = None
    quick_settings: ClassVar[dict[str, Any]] = {
        "epochs": 2,
        "dropout_epochs": 2,
        "around_epochs": 1,
        "warmup": 1,
        "betas": "0.1,1",
        "hidden": 8,
        "width": 0.03,
        "num_train": 60,
        "num_test": 40,
        "batch": 20,
        "draws": 2,
    }

    nets: str = setting("mnist_fc,cifar_vgg", "Networks, separated by commas.")
    epochs: int = setting(100, "Epochs of sparse variational dropout.", ge=1)
    dropout_epochs: int = setting(300, "Epochs of the network with binary dropout.", ge=1)
    around_epochs: int = setting(200, "Epochs of the Gaussians around its weights.", ge=1)
    warmup: int = setting(
        20, "Epochs until the KL counts fully; it is left out for the first quarter of them.", ge=0
    )
    betas: str = setting(
        "0.01,0.1,1",
        "Weights of the KL around the memorised weights, separated by commas; 1 must be one of "
        "them.",
    )
    lr: float = setting(1e-3, "Learning rate of Adam, throughout.", gt=0.0)
    hidden: int = setting(1000, "Units of each hidden layer of the dense network.", ge=1)
    layers: int = setting(3, "Its hidden layers.", ge=1)
    rate: float = setting(0.3, "Its drop rate.", ge=0.0, le=0.95)
    width: float = setting(1.0, "Width of the VGG.", gt=0.0)
    vgg_rate: float = setting(
        1.0, "Its drop rates, as a share of the published ones.", ge=0.0, le=1.0
    )
    batch: int = setting(100, "Images in a step.", ge=2)
    draws: int = setting(10, "Draws of the weights behind the bits of the labels.", ge=1)
    num_train: int = setting(10_000, "Training images.", ge=2)
    num_test: int = setting(10_000, "Test images.", ge=1)

    def run(self, device: torch.device, seed: int, say: Say) -> Outcome:
        """One network after another."""
        names, betas = self._checked()
        tables, figures, checks = [], [], []
        for name in names:
            done = self._one(self._case(name, device, seed), betas, device, seed, say)
            tables += done.tables
            figures += done.figures
            checks += done.checks
        return Outcome(tables, figures, checks)

    def _checked(self) -> tuple[list[str], list[float]]:
        names, betas = [name.strip() for name in self.nets.split(",")], numbers("betas", self.betas)
        if not set(names) <= set(TITLES) or len(set(names)) < len(names):
            raise SettingError(
                f"random_labels: nets={self.nets!r} is not valid; expected some of "
                f"{', '.join(TITLES)}, each once."
            )
        if 1.0 not in betas or min(betas) >= 1.0:
            raise SettingError(
                f"random_labels: betas={self.betas!r} is not valid; expected 1 and at least one "
                "smaller weight."
            )
        if "cifar_vgg" in names and self.num_train % self.batch == 1:
            raise SettingError(
                f"random_labels: num_train={self.num_train} leaves a last batch of one image, "
                "which has no statistics; "
                f"change num_train or batch={self.batch}."
            )
        return names, sorted(betas)

    def _case(self, name: str, device: torch.device, seed: int) -> Case:
        if name == "mnist_fc":
            (x, _), (x_test, y_test) = images("mnist", device, self.num_train)
            test = (x_test[: self.num_test], y_test[: self.num_test])
        else:
            (x, _), test = colour_images("cifar10", device, self.num_train, self.num_test)
        labels = torch.randint(CLASSES, (len(x),), generator=generator(seed, "labels", name)).to(
            device
        )
        return Case(name, (x, labels), test)

    def _net(self, name: str, seed: int, dropout: bool) -> nn.Sequential:
        """The network, with or without dropout: parameters and their order are the same."""
        with isolated(mix(seed, "net", name)):
            if name == "mnist_fc":
                layers = mlp(784, (self.hidden,) * self.layers, CLASSES)
                return nn.Sequential(
                    *[part for layer in layers for part in self._dropped(layer, dropout)]
                )
            net = vgg(CLASSES, self.width, dropout=dropout)
        for module in net.modules():
            if isinstance(module, nn.Dropout):
                module.p *= self.vgg_rate
        return net

    def _dropped(self, layer: nn.Module, dropout: bool) -> list[nn.Module]:
        """A layer, and dropout behind it if its units are hidden ones."""
        return [layer, nn.Dropout(self.rate)] if dropout and isinstance(layer, nn.ReLU) else [layer]

    def _one(
        self, case: Case, betas: list[float], device: torch.device, seed: int, say: Say
    ) -> Outcome:
        fit = {
            "batch_size": self.batch,
            "lr": self.lr,
            "seed": seed,
            "device": device,
            "progress": False,
            "compile": graph_on(device),
        }
        title, lengths, rows = TITLES[case.name], {}, [_empty(case)]

        def note(
            label: str, length: Length, started: float, paper: dict[str, Any] | None = None
        ) -> None:
            lengths[label] = length
            rows.append(length.row(label, case.empty, paper, time.perf_counter() - started))
            say(
                f"{title}, {label}: {_text(length, case.empty)}, "
                f"{time.perf_counter() - started:.0f} s"
            )

        started = time.perf_counter()
        sparse = BNN(self._net(case.name, seed, False)).fit(
            case.train, "sparse_vd", epochs=self.epochs, kl_warmup=self.warmup, **fit
        )
        note("sparse variational dropout", self._length(sparse, case, seed), started, PAPER)
        started = time.perf_counter()
        dropped = BNN(self._net(case.name, seed, True)).fit(
            case.train, "mle", epochs=self.dropout_epochs, **fit
        )
        plain = compress.plain(dropped).to(device)
        heart = (accuracy(plain, case.train), accuracy(plain, case.test))
        scores = {
            "train accuracy %": heart[0],
            "test accuracy %": heart[1],
            "sparsity %": 0.0,
            "data bits": label_bits(plain, case.train),
        }
        rows.append(
            Row(
                "binary dropout", scores | {"seconds": time.perf_counter() - started}, PAPER_DROPOUT
            )
        )
        say(
            f"{title}, binary dropout: train {heart[0]:.1f} %, test {heart[1]:.1f} %, "
            f"{time.perf_counter() - started:.0f} s"
        )
        net = self._net(case.name, seed, False)
        net.load_state_dict(
            {n: v.cpu() for n, v in zip(net.state_dict(), plain.state_dict().values(), strict=True)}
        )
        for beta in betas:
            started = time.perf_counter()
            around = BNN(net).fit(
                case.train,
                "sparse_vd",
                epochs=self.around_epochs,
                kl_warmup=self.warmup,
                beta=beta,
                **fit,
            )
            note(_label(beta), self._length(around, case, seed), started)
        figures = _figures(title, len(case.train[1]), sparse.history, dropped.history)
        return Outcome([_table(title, rows)], figures, _checks(title, case.empty, lengths, heart))

    def _length(self, bnn: BNN, case: Case, seed: int) -> Length:
        """What q makes of the labels, and its length."""
        x, y = case.train
        predictive = bnn.predict(x, self.draws, seed=seed, batch_size=500)
        data = -float(
            predictive.likelihood.log_prob(predictive.outputs, y).double().sum(-1).mean()
        ) / math.log(2)
        left, counted, sparsity = model_bits(bnn)
        net = with_batch_statistics(compress.prune(bnn), bnn, case.train, self.batch, seed)
        steps = bnn.history[-1]["nll"] / math.log(2)
        return Length(
            accuracy(net, case.train),
            accuracy(net, case.test),
            sparsity,
            data,
            steps,
            left,
            counted,
        )


def _empty(case: Case) -> Row:
    """Without weights; its accuracies are those of the most frequent training label."""
    label = case.train[1].bincount(minlength=CLASSES).argmax()
    train, test = (100.0 * float((y == label).double().mean()) for _, y in (case.train, case.test))
    return Length(train, test, 100.0, case.empty, case.empty, 0.0, 0.0).row(
        "the empty network", case.empty
    )


def _label(beta: float) -> str:
    return f"around the weights of binary dropout, beta {beta:g}"


def _text(length: Length, empty: float) -> str:
    bits = (
        f"{length.data:.0f} + {length.model:.0f} bits, {length.total / empty:.3f} of the empty "
        "network's"
    )
    return (
        f"train {length.train:.1f} %, test {length.test:.1f} %, sparsity {length.sparsity:.2f} %, "
        f"{bits}"
    )


def _table(title: str, rows: list[Row]) -> Table:
    columns = (
        "train accuracy %",
        "test accuracy %",
        "sparsity %",
        "data bits",
        "data bits in training",
        "model bits",
        "as training counts",
        "total / empty",
        "seconds",
    )
    note = (
        "Accuracies of the mean network. Data bits: all training labels under draws of the "
        "weights, and with the noise of the last training epoch. "
        "Model bits: the KL of the weights that are left, up to the constant of an improper "
        "prior; training counts a little for each "
        "weight that is gone too. A network without noise has no length by this measure."
    )
    return Table(f"{title}: random labels", columns, rows, note, digits=4)


def _figures(
    title: str, count: int, sparse: list[dict[str, Any]], dropped: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    def over_epochs(
        name: str, history: list[dict[str, Any]], key: str, scale: float
    ) -> dict[str, Any]:
        return line(
            name, [row["epoch"] + 1 for row in history], [row[key] * scale for row in history]
        )

    each = 1.0 / (count * math.log(2))
    lines = [
        over_epochs("sparse variational dropout", sparse, "nll", each),
        over_epochs("binary dropout", dropped, "nll", each),
    ]
    ends = [1, max(len(sparse), len(dropped))]
    guess = line("a guess", ends, [math.log2(CLASSES)] * 2, dash=True, colour=-1)
    return [
        curves(
            f"{title}: bits per training label",
            "epoch",
            "bits per label",
            [*lines, guess],
            caption="As training sees them, noise included: a label that is learned by heart "
            "costs nothing, a guess log2 10 bits.",
        ),
        curves(
            f"{title}: weights given up",
            "epoch",
            "sparsity in %",
            [over_epochs("sparse variational dropout", sparse, "sparsity", 100.0)],
            y_range=[0, 101],
        ),
    ]


def _checks(
    title: str, empty: float, lengths: dict[str, Length], heart: tuple[float, float]
) -> list[Check]:
    chance, sparse, back = (
        100.0 / CLASSES,
        lengths["sparse variational dropout"],
        lengths[_label(1.0)],
    )
    learned = {label: one.least for label, one in lengths.items() if one.train >= LEARNED}
    best = min(learned, key=lambda label: learned[label], default=None)
    return [
        Check(
            f"{title}: weights given up",
            f"{sparse.sparsity:.2f} %",
            "at least 99.9 %",
            sparse.sparsity >= 99.9,
        ),
        Check(
            f"{title}: nothing is learned",
            f"{sparse.train:.1f} % train, {sparse.test:.1f} % test",
            f"within 3 points of {chance:.0f} %",
            max(abs(sparse.train - chance), abs(sparse.test - chance)) <= 3.0,
        ),
        Check(
            f"{title}: length of sparse variational dropout",
            f"{sparse.total:.0f} bits",
            f"within 1 % of the empty network's {empty:.0f}",
            abs(sparse.total - empty) <= 0.01 * empty,
        ),
        Check(
            f"{title}: binary dropout learns by heart",
            f"{heart[0]:.1f} % train, {heart[1]:.1f} % test",
            f"above {LEARNED:.0f} % train, within 3 points of {chance:.0f} % test",
            heart[0] >= LEARNED and abs(heart[1] - chance) <= 3.0,
        ),
        Check(
            f"{title}: length of the cheapest network that has learned by heart",
            "none has" if best is None else f"{learned[best]:.0f} bits ({best})",
            f"above the empty network's {empty:.0f} bits",
            best is not None and learned[best] > empty,
        ),
        Check(
            f"{title}: the full objective leaves the memorised weights",
            f"{back.total:.0f} bits, train {back.train:.1f} %",
            f"within 5 % of {empty:.0f} bits",
            abs(back.total - empty) <= 0.05 * empty,
        ),
    ]
