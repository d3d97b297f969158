"""What experiments share: a fitted posterior under another estimator, minibatches, image data as
rows, and initial weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from credo.bnn import BNN
from credo.core.errors import SettingError
from credo.core.seeds import isolated, mix
from credo.data import load
from credo.engine.elbo import Elbo
from credo.estimators import estimators
from credo.nets import mlp_decoder, mlp_encoder

Pair = tuple[Tensor, Tensor]


def probe(bnn: BNN, estimator: str) -> Elbo:
    """The posterior of ``bnn`` in an ``Elbo`` with this estimator, ready for forward passes; the KL
    is left out.
    """
    elbo = Elbo(bnn.model, bnn.posterior, estimators[estimator], kl="optimizer")
    shell = bnn.model.shell()
    shell.place(bnn.model.frozen())
    shell.train(True)
    return elbo


def minibatches(
    x: Tensor, y: Tensor, size: int, generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless batches of ``size`` examples drawn with replacement."""
    while True:
        rows = torch.randint(len(y), (size,), generator=generator).to(y.device)
        yield x[rows], y[rows]


def images(
    name: str, device: torch.device, count: int | None = None
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Training and test images of a set such as MNIST as rows in [0, 1], the first ``count``
    training images if given.
    """
    data = load(name)
    return tuple(  # type: ignore[return-value]
        (
            _rows(data[f"x_{part}"][:limit]).to(device),
            torch.as_tensor(data[f"y_{part}"][:limit].astype(np.int64)).to(device),
        )
        for part, limit in (("train", count), ("test", None))
    )


def colour_images(
    name: str, device: torch.device, num_train: int, num_test: int
) -> tuple[Pair, Pair]:
    """Training and test images ``(N, C, H, W)``, taken evenly from the stored ones and standardised
    by channel, so that zero is grey.
    """
    data = load(name)
    parts = []
    for part, count in (("train", num_train), ("test", num_test)):
        rows = np.linspace(
            0, len(data[f"y_{part}"]) - 1, min(count, len(data[f"y_{part}"]))
        ).astype(np.int64)
        x = torch.as_tensor(data[f"x_{part}"][rows]).float().div(255.0).movedim(-1, 1).contiguous()
        parts.append((x, torch.as_tensor(data[f"y_{part}"][rows].astype(np.int64))))
    mean, std = parts[0][0].mean((0, 2, 3), keepdim=True), parts[0][0].std((0, 2, 3), keepdim=True)
    first, second = (((x - mean) / std).to(device) for x, _ in parts)
    return (first, parts[0][1].to(device)), (second, parts[1][1].to(device))


def digits(seed: int, num_test: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """The embedded 8 x 8 digits in [0, 1], split at random into training and test parts."""
    data = load("digits")
    x, y = torch.tensor(data["x"] / 16.0, dtype=torch.float32), torch.tensor(data["y"]).long()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    test, train = order[:num_test], order[num_test:]
    return (x[train], y[train]), (x[test], y[test])


def glorot(*coders: nn.Module) -> None:
    """Uniform weights of variance 2 / (fan-in + fan-out), biases zero."""
    for layer in (
        layer for coder in coders for layer in coder.modules() if isinstance(layer, nn.Linear)
    ):
        nn.init.xavier_uniform_(layer.weight)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


def coders(
    seed: int,
    width: int,
    size: int,
    hidden: Sequence[int],
    features: int = 784,
    outputs: int | None = None,
    activation: str = "relu",
    start: Callable[..., None] = lambda *_: None,
) -> tuple[nn.Module, nn.Module]:
    """Perceptrons from ``features`` numbers to ``width`` and from ``size`` to ``outputs``, with
    initial values of this seed.
    """
    with isolated(mix(seed, "coders")):
        pair = (
            mlp_encoder((features,), width, hidden, activation),
            mlp_decoder(size, features if outputs is None else outputs, hidden, activation),
        )
        start(*pair)
    return pair


def sizes(name: str, text: str, most: int) -> list[int]:
    """Different whole numbers from 1 to ``most``, separated by commas."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1 or max(found) > most or len(set(found)) < len(found):
        raise SettingError(
            f"{name}={text!r} is not valid; expected different whole numbers from 1 to {most}, "
            "separated by commas."
        )
    return found


def _rows(array: np.ndarray) -> Tensor:
    return torch.as_tensor(array.reshape(len(array), -1)).float() / 255.0
