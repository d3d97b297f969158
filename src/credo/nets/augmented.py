"""A network behind a random change of its inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from torch import Tensor, nn


@final
class Augmented(nn.Module):
    """net(augment(x)) in training mode, net(x) in evaluation mode.

    ``augment`` takes a batch and gives one of the same shape, with random numbers from torch's
    generators. Fitted with the method "stochastic", predictions average over augmented inputs:
    test-time augmentation.
    """

    def __init__(self, net: nn.Module, augment: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.net, self.augment = net, augment

    def forward(self, x: Tensor) -> Tensor:
        """The network's outputs."""
        return self.net(self.augment(x) if self.training else x)
