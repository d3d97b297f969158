"""Settings that several variational methods share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from credo.core.settings import setting
from credo.posteriors import startable


@dataclass(frozen=True)
class DensitySettings:
    """Of a family of densities over weights: where its width starts, how its KL is computed."""

    init_std: float = setting(0.01, "Initial standard deviation of every weight.", gt=0.0)
    kl: str = setting(
        "closed",
        "How the KL is computed: in closed form where it is known, or always sampled.",
        choices=("closed", "sampled"),
    )


@dataclass(frozen=True)
class FamilySettings:
    """Of methods that leave the family of q to the user."""

    posterior: str = setting("mean_field", "Posterior family.", choices=startable())
    scale: str = setting(
        "log", "Parameterisation of the standard deviation.", choices=("log", "softplus")
    )
    rank: int = setting(4, "Factors of the low-rank family.", ge=1)
    levels: Any = setting(
        (-1.0, 1.0),
        "Values of the discrete family; of the size of trained weights, about 2 / sqrt(fan-in).",
        kind=(tuple, list),
    )
