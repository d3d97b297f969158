"""Which distributions have a JSON form, and how one is rebuilt with other arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributions
from torch import Tensor
from torch.distributions import Distribution

from credo.core.registry import Registry

#: The longest vector that goes into a run file as numbers.
LONGEST = 1000

#: Torch's distributions of one number whose arguments are what their ``arg_constraints`` name.
_TORCH = (
    "Normal",
    "Laplace",
    "StudentT",
    "Cauchy",
    "Gumbel",
    "LogNormal",
    "Uniform",
    "Exponential",
    "Gamma",
    "InverseGamma",
    "HalfNormal",
    "HalfCauchy",
    "Beta",
    "Chi2",
    "FisherSnedecor",
    "Kumaraswamy",
    "Pareto",
    "VonMises",
    "Weibull",
)


def _none(distribution: Any) -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class Stored:
    """A class of distributions that can be written down: its tensors by ``arg_constraints``, and
    ``constants`` beside them.

    ``constants`` reads the constructor arguments that are not tensors, such as the name of a mixing
    density.
    """

    kind: type[Distribution]
    constants: Callable[[Any], dict[str, Any]] = _none


#: Name of a class -> how it is written down. Register a class of your own to have it in run files.
stored: Registry[Stored] = Registry("prior distribution")
for _name in _TORCH:
    stored.register(_name)(Stored(getattr(torch.distributions, _name)))


def _entry(distribution: Distribution) -> Stored | None:
    name = type(distribution).__name__
    return stored[name] if name in stored and stored[name].kind is type(distribution) else None


def arguments(distribution: Distribution) -> dict[str, Tensor]:
    """The tensors a distribution was made from, by the names of its ``arg_constraints``."""
    return {name: getattr(distribution, name) for name in distribution.arg_constraints}


def rebuilt(distribution: Distribution, values: Mapping[str, Any]) -> Distribution:
    """The same kind of distribution from other argument values, without validation, which would
    wait for the device.
    """
    entry = _entry(distribution)
    constants = entry.constants(distribution) if entry is not None else {}
    kind: Any = type(distribution)
    return kind(**constants, **values, validate_args=False)


def to_config(distribution: Distribution) -> dict[str, Any] | None:
    """``{"distribution", "arguments"}`` of JSON values, or None for a class that is not stored or
    arguments that are not short.
    """
    entry = _entry(distribution)
    if entry is None:
        return None
    values = arguments(distribution)
    constants = entry.constants(distribution)
    if any(
        not isinstance(v, Tensor) or v.dim() > 1 or v.numel() > LONGEST for v in values.values()
    ):
        return None
    if not all(math.isfinite(x) for v in values.values() for x in v.reshape(-1).tolist()):
        return None
    return {
        "distribution": type(distribution).__name__,
        "arguments": constants | {name: v.detach().tolist() for name, v in values.items()},
    }


def of_config(config: Mapping[str, Any]) -> Distribution:
    """The inverse of ``to_config``."""
    kind: Any = stored[config["distribution"]].kind
    return kind(**{name: _tensor(value) for name, value in config["arguments"].items()})


def _tensor(value: Any) -> Any:
    if not isinstance(value, (int, float, list)):
        return value
    exact = torch.tensor(value, dtype=torch.float64)
    short = exact.to(torch.get_default_dtype())
    return (
        short if torch.equal(short.double(), exact) else exact
    )  # the default dtype unless it would round what was stored
