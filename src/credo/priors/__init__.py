"""Priors over the random parameters.

Any elementwise ``torch.distributions`` object is one already.
"""

from torch.distributions import Laplace, Normal, StudentT

from credo.priors import named  # noqa: F401  (registers the names)
from credo.priors.base import Factorised, Fixed, Prior, Unstored, default_prior, from_config
from credo.priors.by_pattern import ByPattern, as_prior, presets
from credo.priors.fan_in import FanIn
from credo.priors.flat import Flat, is_proper
from credo.priors.gaussian_mixture import GaussianMixture, scale_mixture, spike_and_slab
from credo.priors.learned import Learned, learned_mixture
from credo.priors.mixing import Mixing, mixings
from credo.priors.optimal import Optimal
from credo.priors.scale_mixtures import (
    ScaleMixture,
    has_pole,
    horseshoe,
    is_log_uniform,
    log_uniform,
)
from credo.priors.scaled import Scaled
from credo.priors.sharing import Grouping, groupings
from credo.priors.zero_mixture import ZeroMixture, shared_values

__all__ = [
    "ByPattern",
    "Factorised",
    "FanIn",
    "Fixed",
    "Flat",
    "GaussianMixture",
    "Grouping",
    "Laplace",
    "Learned",
    "Mixing",
    "Normal",
    "Optimal",
    "Prior",
    "ScaleMixture",
    "Scaled",
    "StudentT",
    "Unstored",
    "ZeroMixture",
    "as_prior",
    "default_prior",
    "from_config",
    "groupings",
    "has_pole",
    "horseshoe",
    "is_log_uniform",
    "is_proper",
    "learned_mixture",
    "log_uniform",
    "mixings",
    "presets",
    "scale_mixture",
    "shared_values",
    "spike_and_slab",
]
