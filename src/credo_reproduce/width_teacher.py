"""Data from a teacher whose width is known: a network of a few hidden units, each of which is
needed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from credo.core.seeds import generator
from credo.nets import mlp


class Problem(NamedTuple):
    """Inputs ``(N, 2)`` and labels ``(N, 1)``: for training, of which a fit takes the first, and
    for testing.
    """

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def teacher(units: int, seed: int) -> nn.Module:
    """Steep tanh units in random directions, all of about the same weight, so that each is
    needed.
    """
    net, source = mlp(2, (units,), 1, activation="tanh"), generator(seed, "teacher")
    hidden: Any = net[0]
    last: Any = net[2]
    with torch.no_grad():
        hidden.weight.copy_(3.0 * nn.functional.normalize(torch.randn(units, 2, generator=source)))
        hidden.bias.copy_(4.0 * torch.rand(units, generator=source) - 2.0)
        signs = torch.randint(0, 2, (1, units), generator=source) * 2.0 - 1.0
        last.weight.copy_(signs * (0.7 + 0.6 * torch.rand(1, units, generator=source)))
        last.bias.zero_()
    return net


@torch.no_grad()
def problem(units: int, num_train: int, num_test: int, noise: float, seed: int) -> Problem:
    """Labels of a teacher with Gaussian noise; the first points are the same for all sizes."""
    net = teacher(units, seed)

    def part(count: int, name: str) -> tuple[Tensor, Tensor]:
        x = 2.0 * torch.rand(count, 2, generator=generator(seed, name)) - 1.0
        return x, net(x) + noise * torch.randn(count, 1, generator=generator(seed, name, "noise"))

    return Problem(part(num_train, "train"), part(num_test, "test"))
