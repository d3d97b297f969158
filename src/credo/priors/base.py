"""What a prior is: an elementwise distribution for every random parameter."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from credo.core.errors import CredoError, SettingError, nearest
from credo.core.sites import Site
from credo.priors.flat import Flat


class Prior(ABC):
    """Gives each site its distribution over single weights, whose log density sums over the site's elements."""

    @abstractmethod
    def at(self, site: Site) -> Distribution:
        """The distribution of one element of ``site``, or of all of them if its batch shape is the site's."""

    @abstractmethod
    def describe(self) -> str:
        """One line for reports and run files."""

    def config(self) -> dict[str, Any] | None:
        """A JSON-able description for run files, or None where there is none; then loading needs the prior given again."""
        return None


@dataclass(frozen=True)
class Fixed(Prior):
    """The same torch distribution for every site."""

    distribution: Distribution

    def at(self, site: Site) -> Distribution:
        """The distribution in the site's dtype and on its device."""
        return move(self.distribution, site.dtype, site.device)

    def describe(self) -> str:
        """The distribution as torch prints it."""
        return str(self.distribution)

    def config(self) -> dict[str, Any] | None:
        """Class name and arguments, for distributions whose arguments are single numbers."""
        kind = type(self.distribution)
        if kind is not Flat and kind is not getattr(torch.distributions, kind.__name__, None):
            return None
        values = {name: getattr(self.distribution, name) for name in self.distribution.arg_constraints}
        if any(not isinstance(v, Tensor) or v.dim() for v in values.values()) or not (values or kind is Flat):
            return None
        return {"name": "fixed", "distribution": kind.__name__, "arguments": {n: float(v) for n, v in values.items()}}


@dataclass(frozen=True)
class Unstored(Prior):
    """Stands for the prior of a loaded run that had no JSON form: predictions do not need it, anything else says so."""

    text: str

    def at(self, site: Site) -> Distribution:
        """Always an error."""
        raise CredoError(
            f"The prior of this run ({self.text}) could not be stored with it; give it again: credo.load(path, net, prior=...)."
        )

    def describe(self) -> str:
        """As it was described when it was saved."""
        return self.text


class ByPattern(Prior):
    """Different priors by fnmatch pattern over parameter names; the first match counts, and a site without one is an error."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        self.table = {pattern: as_prior(prior) for pattern, prior in table.items()}

    def at(self, site: Site) -> Distribution:
        """The distribution of the first pattern that matches."""
        for pattern, prior in self.table.items():
            if fnmatchcase(site.name, pattern):
                return prior.at(site)
        raise SettingError(f"No prior pattern matches {site.name!r}.{nearest(site.name, self.table)} Add '*' to cover the rest.")

    def matches(self, name: str) -> bool:
        """Whether a pattern covers ``name``."""
        return any(fnmatchcase(name, pattern) for pattern in self.table)

    def config(self) -> dict[str, Any] | None:
        """The parts' descriptions, if all have one."""
        parts = {pattern: prior.config() for pattern, prior in self.table.items()}
        return None if None in parts.values() else {"name": "by_pattern", "table": parts}

    def describe(self) -> str:
        """Pattern by pattern."""
        return "; ".join(f"{pattern}: {prior.describe()}" for pattern, prior in self.table.items())


def as_prior(spec: Any) -> Prior:
    """A prior from a Prior, a torch distribution, or a dict of patterns."""
    if isinstance(spec, Prior):
        return spec
    if isinstance(spec, Distribution):
        if spec.event_shape:
            raise SettingError(f"A prior must be elementwise; {spec} has event shape {tuple(spec.event_shape)}.")
        return Fixed(spec)
    if isinstance(spec, Mapping):
        return ByPattern(spec)
    raise SettingError(f"prior={spec!r}: expected a torch distribution, a credo prior, a posterior, or a dict pattern -> prior.")


def move(distribution: Distribution, dtype: torch.dtype, device: torch.device) -> Distribution:
    """The same distribution with its tensors in another dtype and on another device."""
    clone = object.__new__(type(distribution))
    for key, value in distribution.__dict__.items():
        if isinstance(value, Distribution):
            value = move(value, dtype, device)
        elif isinstance(value, Tensor):
            value = value.to(device, dtype if value.is_floating_point() else None)
        clone.__dict__[key] = value
    clone._validate_args = False  # validation reads its verdict back from the device at every step, which no graph can capture
    return clone
