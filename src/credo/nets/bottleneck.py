"""A bottleneck of limited information: a layer that hands on a noisy code of its inputs and says
what the code costs.

q(z given x) = N(mean(x), std(x)^2), each unit by itself, and the cost is KL[q(z given x), r(z)]
with r = N(0, I), in nats. Averaged over x it is an upper bound on I(X; Z), whatever the marginal of
z. Alemi, Fischer, Dillon and Murphy 2017.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import Tensor, nn

from credo.core.errors import SettingError
from credo.core.settings import check_sizes
from credo.posteriors.std_transform import scales

SPREAD = scales["softplus"]


@final
class Bottleneck(nn.Module):
    """``(N, ..., in_features) -> (N, ..., latent_dim)``: one draw z per example in training mode,
    the mean of z in evaluation mode.

    A linear map gives means and raw spreads, std = softplus(raw + shift), with a shift that makes
    std about ``init_std`` at the start: not so large that nothing comes through, nor so small that
    a high price of the KL is paid before anything is learned. After a call in training mode ``kl``
    holds KL[q(z given x), N(0, I)] in nats ``(N,)``, summed over units and over the axes between
    the first and the last, ready for a loss of one's own: ``nll + beta * layer.kl.mean()``. After a
    call in evaluation mode it is None. The first axis must be that of the examples. Sizes below 1
    and an ``init_std`` that is not above 0 are refused.
    """

    kl: Tensor | None
    calls: list[Tensor] | None

    def __init__(self, in_features: int, latent_dim: int, init_std: float = 0.5) -> None:
        super().__init__()
        check_sizes("Bottleneck", in_features=in_features, latent_dim=latent_dim)
        if (
            isinstance(init_std, bool)
            or not isinstance(init_std, (int, float))
            or not 0 < init_std < float("inf")
        ):
            raise SettingError(
                f"Bottleneck: init_std={init_std!r} is not valid; expected a finite number above 0."
            )
        self.in_features, self.latent_dim, self.init_std = in_features, latent_dim, init_std
        self.numbers = nn.Linear(in_features, 2 * latent_dim)
        self.shift = SPREAD.raw(init_std)
        self.kl = self.calls = None

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of z given x, each ``(..., latent_dim)``."""
        mean, raw = self.numbers(x).chunk(2, -1)
        std = SPREAD.std(raw + self.shift)
        return mean, std.clamp_min(
            torch.finfo(std.dtype).tiny ** 0.25
        )  # never zero, so that the KL stays finite

    def forward(self, x: Tensor) -> Tensor:
        """z, drawn or at its mean."""
        mean, std = self.encode(x)
        if not self.training:
            self.kl = None
            return mean
        self.kl = _each(0.5 * (mean.square() + std.square() - 1) - std.log())
        if self.calls is not None:
            self.calls.append(self.kl)
        return mean + std * torch.randn_like(std)

    def extra_repr(self) -> str:
        """Sizes, for ``print``."""
        return (
            f"in_features={self.in_features}, latent_dim={self.latent_dim}, "
            f"init_std={self.init_std:g}"
        )

    def __getstate__(self) -> dict[str, Any]:
        """Without what the last call left: a tensor inside a graph cannot be copied, and a copy has
        had no calls.
        """
        return self.__dict__ | {"kl": None, "calls": None}


def bottlenecks(net: nn.Module) -> dict[str, Bottleneck]:
    """The bottlenecks of a network by their paths; one that is used in several places, once."""
    return {path: module for path, module in net.named_modules() if isinstance(module, Bottleneck)}


@contextmanager
def recorded(net: nn.Module) -> Iterator[list[Tensor]]:
    """What the bottlenecks of ``net`` cost inside the block: ``(N,)`` for every call in training
    mode, a shared one's calls all of them.

    Nothing of the calls is left in the network afterwards, so that no graph outlives the block by
    it.
    """
    calls: list[Tensor] = []
    found = list(bottlenecks(net).values())
    for module in found:
        module.kl, module.calls = None, calls
    try:
        yield calls
    finally:
        for module in found:
            module.kl = module.calls = None


def _each(units: Tensor) -> Tensor:
    """The sum over all axes but the first ``(N,)``; of a lone vector over its only one ``()``."""
    return units.sum(-1) if units.dim() == 1 else units.flatten(1).sum(1)
