"""Problems that every method is fitted to as it comes: known answers, tables, images, sequences.

Each is small enough that most methods are done in a minute on one thread. A seed makes the data, or
the split of stored data; the network starts at the same weights for every method.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from credo.bnn import BNN
from credo.core.seeds import generator, isolated
from credo.data import load
from credo.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from credo.nets import lenet5_caffe, lstm_classifier, mlp, transformer_classifier
from credo.priors import Prior

Pair = tuple[Tensor, Tensor]

FEATURES, NOISE = 5, 0.5  # of linear regression
LATENT, OBSERVED = 2, 8  # of the linear autoencoder


class Problem(NamedTuple):
    """Data, network and likelihood.

    ``kind``: "conjugate" (the posterior is known), "values", "labels", or "generative" (the
    marginal likelihood is known; the network is made by whoever fits it).
    """

    name: str
    seed: int
    kind: str
    train: Pair
    test: Pair
    network: Callable[[], nn.Module]
    likelihood: Likelihood

    def bnn(self, prior: Prior | torch.distributions.Distribution | None = None) -> BNN:
        """A fresh model: the same network for every method."""
        with isolated(self.seed):
            net = self.network()
        return BNN(net, self.likelihood, prior=prior)


def _linear(name: str, num_data: int, scale: float) -> Callable[[int], Problem]:
    """Conjugate regression; targets are made before the inputs are scaled."""

    def make(seed: int) -> Problem:
        source = generator("defaults", "linear", num_data, seed)
        x = torch.randn(num_data + 1000, FEATURES, generator=source)
        weights = torch.randn(FEATURES, 1, generator=source)
        y = x @ weights + 0.3 + NOISE * torch.randn(len(x), 1, generator=source)
        train, test = _cut(scale * x, y, num_data)
        network = lambda: nn.Linear(FEATURES, 1)  # noqa: E731
        return Problem(name, seed, "conjugate", train, test, network, Gaussian(std=NOISE))

    return make


def _cut(x: Tensor, y: Tensor, count: int) -> tuple[Pair, Pair]:
    return (x[:count], y[:count]), (x[count:], y[count:])


def _shuffled(x: Tensor, y: Tensor, seed: int) -> Pair:
    order = torch.randperm(len(y), generator=generator("defaults", "order", seed))
    return x[order], y[order]


def _standardised(train: Tensor, test: Tensor) -> tuple[Tensor, Tensor]:
    """By mean and deviation of the training part; constant columns are only centred."""
    mean, std = train.mean(0), train.std(0)
    std = torch.where(std > 1e-9, std, torch.ones_like(std))
    return ((train - mean) / std).float(), ((test - mean) / std).float()


def sine(seed: int) -> Problem:
    """A sine with noise 0.1 on [-3, -1] and [1, 3]; tested where there are data, not in the gap."""
    source = generator("defaults", "sine", seed)
    x = 1 + 2 * torch.rand(400, 1, generator=source)
    x = x * (1 - 2.0 * (torch.rand(400, 1, generator=source) < 0.5))
    y = torch.sin(2 * x) + 0.1 * torch.randn(400, 1, generator=source)
    train, test = _cut(x, y, 200)
    return Problem("sine", seed, "values", train, test, lambda: mlp(1, (50,)), Gaussian())


def crescents(seed: int) -> Problem:
    """Two interleaved crescents with noise 0.2."""
    from sklearn.datasets import make_moons

    x, y = make_moons(600, noise=0.2, random_state=seed)
    train, test = _cut(torch.as_tensor(x).float(), torch.as_tensor(y).long(), 200)
    network = lambda: mlp(2, (50,), 2)  # noqa: E731
    return Problem("crescents", seed, "labels", train, test, network, Categorical())


def _digits(num_data: int) -> Callable[[int], Problem]:
    """Images of 8 x 8 pixels; the 360 test images do not depend on how many are learned from."""

    def make(seed: int) -> Problem:
        data = load("digits")
        x, y = torch.as_tensor(data["x"]).float() / 16, torch.as_tensor(data["y"]).long()
        (x, y), test = _cut(*_shuffled(x, y, seed), 1437)
        network = lambda: mlp(64, (100,), 10)  # noqa: E731
        train = x[:num_data], y[:num_data]
        return Problem(f"digits_{num_data}", seed, "labels", train, test, network, Categorical())

    return make


def wine(seed: int) -> Problem:
    """Three classes, 13 features, 120 rows to learn from and 58 to test on."""
    data = load("wine")
    x, y = _shuffled(torch.as_tensor(data["x"]), torch.as_tensor(data["y"]).long(), seed)
    train, test = _standardised(x[:120], x[120:])
    network = lambda: mlp(13, (50,), 3)  # noqa: E731
    return Problem(
        "wine", seed, "labels", (train, y[:120]), (test, y[120:]), network, Categorical()
    )


def diabetes(seed: int) -> Problem:
    """Ten features, 300 rows to learn from and 142 to test on; much noise."""
    data = load("diabetes")
    x, y = _shuffled(
        torch.as_tensor(data["x"]).double(), torch.as_tensor(data["y"]).double()[:, None], seed
    )
    return _table("diabetes", seed, (x[:300], y[:300]), (x[300:], y[300:]))


def _table(name: str, seed: int, train: Pair, test: Pair) -> Problem:
    x, x_test = _standardised(train[0], test[0])
    y, y_test = _standardised(train[1], test[1])
    network = lambda: mlp(x.shape[1], (50,))  # noqa: E731
    return Problem(name, seed, "values", (x, y), (x_test, y_test), network, Gaussian())


def _uci(name: str) -> Callable[[int], Problem]:
    """The published split whose number is the seed."""

    def make(seed: int) -> Problem:
        data = load(f"uci_{name}")
        x, y = (
            torch.as_tensor(np.asarray(data[key], dtype=np.float64)).reshape(len(data["y"]), -1)
            for key in ("X", "y")
        )
        train, test = (torch.as_tensor(data[f"{p}_idx"][seed]).long() for p in ("train", "test"))
        return _table(name, seed, (x[train], y[train]), (x[test], y[test]))

    return make


def credit(seed: int) -> Problem:
    """A table like that of German credits: 7 numbers, 13 columns of 0 and 1, a weak signal and a
    base rate of 0.3.
    """
    source = generator("defaults", "credit", seed)
    rows = 3000
    numbers = torch.randn(rows, 7, generator=source)
    alone = (torch.rand(rows, 5, generator=source) < 0.4).float()
    choices = [
        nn.functional.one_hot(torch.randint(4, (rows,), generator=source), 4).float()
        for _ in range(2)
    ]
    x = torch.cat([numbers, alone, *choices], 1)
    score = (x - x.mean(0)) @ torch.randn(20, generator=source)
    score = 1.2 * score / score.std()
    low, high = -10.0, 10.0
    for _ in range(60):  # the intercept at which 0.3 is the mean probability
        middle = (low + high) / 2
        low, high = (middle, high) if torch.sigmoid(score + middle).mean() < 0.3 else (low, middle)
    y = (torch.rand(rows, generator=source) < torch.sigmoid(score + low)).long()
    train, test = _cut(x, y, 1000)
    return Problem("credit", seed, "labels", train, test, lambda: mlp(20, (50,), 1), Bernoulli())


def lenet(seed: int) -> Problem:
    """2,000 MNIST images and 500 to test on, by the convolutional LeNet (431,080 weights)."""
    data = load("mnist")
    parts = []
    for part, count in (("train", 2000), ("test", 500)):
        labels = data[f"y_{part}"]
        rows = torch.randperm(len(labels), generator=generator("defaults", part, seed))[:count]
        x = torch.as_tensor(np.asarray(data[f"x_{part}"][rows.numpy()], dtype=np.float32) / 255)
        y = torch.as_tensor(labels[rows.numpy()].astype(np.int64))
        parts.append((x.reshape(-1, 1, 28, 28), y))
    return Problem("lenet", seed, "labels", parts[0], parts[1], lenet5_caffe, Categorical())


def lstm(seed: int) -> Problem:
    """Which of two tokens came last, in 300 sequences of ten."""
    source = generator("defaults", "lstm", seed)
    x = torch.randint(5, (900, 10), generator=source)
    x[:, 0] = torch.randint(2, (900,), generator=source)  # one of the two is always there
    places = torch.arange(10)
    first, second = ((torch.where(x == token, places, -1)).amax(1) for token in (0, 1))
    train, test = _cut(x, (second > first).long(), 300)
    network = lambda: lstm_classifier(vocab=5, hidden=16, outputs=2, width=8)  # noqa: E731
    return Problem("lstm", seed, "labels", train, test, network, Categorical())


def transformer(seed: int) -> Problem:
    """Which of two tokens is the more frequent, in 300 sequences of eleven of them and others."""
    source = generator("defaults", "transformer", seed)
    x = torch.randint(6, (3000, 11), generator=source)
    lead = (x == 0).sum(1) - (x == 1).sum(1)
    x, lead = x[lead != 0][:900], lead[lead != 0][:900]
    train, test = _cut(x, (lead > 0).long(), 300)
    network = lambda: transformer_classifier(  # noqa: E731
        vocab=6, outputs=2, width=16, heads=2, layers=1, feedforward=32, max_length=11
    )
    return Problem("transformer", seed, "labels", train, test, network, Categorical())


def linear_vae(seed: int) -> Problem:
    """Eight numbers made of two and noise; x stands in the place of y, too."""
    source = generator("defaults", "linear vae", seed)
    loadings = torch.randn(LATENT, OBSERVED, generator=source)
    z = torch.randn(1000, LATENT, generator=source)
    x = z @ loadings + 0.5 + NOISE * torch.randn(1000, OBSERVED, generator=source)
    train, test = _cut(x, x, 500)
    network = lambda: nn.Linear(LATENT, OBSERVED)  # noqa: E731
    return Problem("linear_vae", seed, "generative", train, test, network, Gaussian())


PROBLEMS: dict[str, Callable[[int], Problem]] = {
    "linear_20": _linear("linear_20", 20, 1.0),
    "linear_200": _linear("linear_200", 200, 1.0),
    "linear_5000": _linear("linear_5000", 5000, 1.0),
    "linear_large": _linear("linear_large", 200, 1e3),
    "linear_tiny": _linear("linear_tiny", 200, 1e-3),
    "sine": sine,
    "crescents": crescents,
    "digits_100": _digits(100),
    "digits_1437": _digits(1437),
    "wine": wine,
    "diabetes": diabetes,
    "yacht": _uci("yacht"),
    "energy": _uci("energy"),
    "credit": credit,
    "lenet": lenet,
    "lstm": lstm,
    "transformer": transformer,
    "linear_vae": linear_vae,
}
#: Problems that need a stored data set.
NEEDS = {"yacht": "uci_yacht", "energy": "uci_energy", "lenet": "mnist"}
#: Generative models, and the methods that take them here.
GENERATIVE = {"linear_vae": ("map", "vi")}


def base_nll(problem: Problem) -> float:
    """Mean test nll of the best constant prediction: class frequencies, or one normal, of the
    training targets.
    """
    (_, y), (_, y_test) = problem.train, problem.test
    if problem.kind == "labels":
        counts = torch.bincount(y, minlength=int(y_test.max()) + 1).double()
        return -float((counts / counts.sum()).clamp_min(1e-6).log()[y_test].mean())
    mean, y_test = y.double().mean(0), y_test.double()
    var = (y.double() - mean).square().mean()
    each = 0.5 * ((y_test - mean).square() / var + var.log() + math.log(2 * math.pi))
    return float(each.sum(1).mean())
