"""A normal prior whose variance shrinks with the number of inputs, so that every layer keeps its
scale.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributions import Distribution, Normal

from credo.core.sites import Site
from credo.priors.base import Prior, kinds


@kinds.register("fan_in")
@dataclass(frozen=True)
class FanIn(Prior):
    """N(0, std^2 / fan-in) for weights and N(0, std^2) for biases, embeddings and scales.

    With std = sqrt(2) a ReLU network's prior functions keep their variance from layer to layer (He
    et al. 2015), whatever its width; a fixed N(0, 1) makes the outputs of a 400-wide network
    hundreds of units wide before it has seen data. Under mean-field VI the narrower prior underfits
    small networks: compare with ``std=3`` or with N(0, 1).
    """

    std: float = math.sqrt(2.0)

    def at(self, site: Site) -> Distribution:
        """The normal distribution of one element of ``site``."""
        scale = torch.tensor(
            self.std / math.sqrt(site.fan_in), dtype=site.dtype, device=site.device
        )
        return Normal(torch.zeros_like(scale), scale, validate_args=False)

    def config(self) -> dict[str, Any]:
        """The number."""
        return {"name": "fan_in", "std": self.std}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Prior:
        """The inverse of ``config``."""
        return cls(config["std"])

    def describe(self) -> str:
        """The formula with its number."""
        return f"Normal(0, {self.std:.4g} / sqrt(fan_in))"
