"""Priors over the random parameters. Any elementwise ``torch.distributions`` object is one already."""

from typing import Any

import torch.distributions
from torch.distributions import Laplace, Normal, StudentT

from credo.priors.base import ByPattern, Fixed, Prior, Unstored, as_prior
from credo.priors.fan_in import FanIn
from credo.priors.flat import Flat
from credo.priors.scale_mixture import scale_mixture

__all__ = [
    "ByPattern",
    "FanIn",
    "Fixed",
    "Flat",
    "Laplace",
    "Normal",
    "Prior",
    "StudentT",
    "Unstored",
    "as_prior",
    "default_prior",
    "from_config",
    "scale_mixture",
]


def default_prior() -> Prior:
    """What ``prior=None`` means: N(0, 1), tied with FanIn(3) as the best normal prior and more robust to raw inputs.

    See ``benchmarks/results/default_prior.md``. Laplace(0, 0.5) lost a little less there; a normal prior is kept because it is conjugate.
    """
    return Fixed(Normal(0.0, 1.0))


def from_config(config: dict[str, Any]) -> Prior:
    """The inverse of ``Prior.config``."""
    if config["name"] == "fan_in":
        return FanIn(config["std"])
    if config["name"] == "by_pattern":
        return ByPattern({pattern: from_config(part) for pattern, part in config["table"].items()})
    kind = Flat if config["distribution"] == "Flat" else getattr(torch.distributions, config["distribution"])
    return Fixed(kind(**config["arguments"]))
