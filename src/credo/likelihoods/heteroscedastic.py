"""Real targets whose noise the network predicts too."""

from __future__ import annotations

from typing import ClassVar, Self

import torch
from torch import Tensor
from torch.distributions import Normal
from torch.nn.functional import softplus

from credo.core.errors import NetworkError, SettingError
from credo.likelihoods.base import Likelihood, likelihoods
from credo.likelihoods.mixtures import make_generator
from credo.likelihoods.normal_noise import NormalNoise


@likelihoods.register("heteroscedastic")
class Heteroscedastic(NormalNoise):
    """y_d = m_d + s_d * noise: of 2 D outputs the first D are means, the last D raw deviations, s =
    min_std + softplus(raw).

    Maximum likelihood can drive s to ``min_std`` on points it interpolates; the floor bounds the
    density there.
    """

    name: ClassVar[str] = "heteroscedastic"
    latents_per_target: ClassVar[int | None] = 2

    def __init__(self, min_std: float = 1e-3) -> None:
        if not min_std > 0.0:
            raise SettingError(
                f"Heteroscedastic: min_std={min_std!r} is not valid; expected a number above 0."
            )
        super().__init__(min_std=min_std)
        self.min_std = min_std
        self.scale: Tensor | None  # of targets in units of their own, (D,)
        self.register_buffer("scale", None, persistent=False)

    @property
    def learns_size(self) -> bool:
        """Always."""
        return True

    def in_units(self, std: Tensor) -> Self:
        """Given means that are ``std`` times as large, and raw deviations as they were."""
        other = self.frozen()
        other._buffers["scale"] = std.clone()
        return other

    def split(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and deviation, each ``(..., N, D)``, of outputs ``(..., N, 2 D)``."""
        if outputs.shape[-1] % 2:
            raise NetworkError(
                f"The heteroscedastic likelihood got {outputs.shape[-1]} outputs per datum; "
                "expected a mean and a raw "
                "deviation for every target, so an even number: double the network's last layer."
            )
        mean, raw_std = outputs.chunk(2, -1)
        return mean, self._scaled(self.min_std + softplus(raw_std))

    def _scaled(self, std: Tensor) -> Tensor:
        return std if self.scale is None else std * self.scale.to(std)

    def marginals(self, outputs: Tensor) -> Normal:
        """``Normal`` with batch shape ``(..., N, D)``."""
        mean, std = self.split(outputs)
        return Normal(mean, std, validate_args=False)

    def information(self, outputs: Tensor) -> Tensor:
        """1 / s^2 about the mean and 2 (ds / draw)^2 / s^2 about the raw deviation, nothing between
        them.
        """
        _, std = self.split(outputs)
        slope = self._scaled(torch.sigmoid(outputs.chunk(2, -1)[1]))
        return torch.diag_embed(torch.cat([std.pow(-2), 2.0 * (slope / std).square()], -1))

    def student(self) -> Likelihood:
        """One with the same floor."""
        return type(self).from_config(self.config())

    def sample(self, outputs: Tensor, generator: torch.Generator | int = 0) -> Tensor:
        mean, std = self.split(outputs)
        return mean + std * torch.empty_like(mean).normal_(
            generator=make_generator(outputs, generator)
        )
