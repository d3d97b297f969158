"""Different priors for different parameters, and the prior that a user's argument means."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from credo.core.errors import SettingError, nearest
from credo.core.registry import Registry
from credo.core.sites import Site
from credo.priors.base import Fixed, Prior, from_config, kinds


@kinds.register("by_pattern")
class ByPattern(Prior):
    """Different priors by fnmatch pattern over parameter names; the first match counts, and a site
    without one is an error.
    """

    def __init__(self, table: Mapping[str, Any]) -> None:
        self.table = {pattern: as_prior(prior) for pattern, prior in table.items()}

    def at(self, site: Site) -> Distribution:
        """The distribution of the first pattern that matches."""
        pattern = self._first(site.name)
        if pattern is not None:
            return self.table[pattern].at(site)
        raise SettingError(
            f"No prior pattern matches {site.name!r}.{nearest(site.name, self.table)} Add '*' to "
            "cover the rest."
        )

    def matches(self, name: str) -> bool:
        """Whether a pattern covers ``name``."""
        return self._first(name) is not None

    def fresh(self, sites: Mapping[str, Site]) -> Prior:
        """The same table, each prior fresh over the sites whose first match it is."""
        return ByPattern(
            {
                pattern: prior.fresh(self._share(pattern, sites))
                for pattern, prior in self.table.items()
            }
        )

    def parts(self) -> list[nn.Module]:
        """Those of all priors in the table, in its order."""
        return [part for prior in self.table.values() for part in prior.parts()]

    def penalty(self) -> Tensor | None:
        """The sum over the table."""
        terms = [term for prior in self.table.values() if (term := prior.penalty()) is not None]
        return torch.stack([term.to(terms[0]) for term in terms]).sum() if terms else None

    def observe(self, means: Mapping[str, Tensor], variances: Mapping[str, Tensor]) -> None:
        """Each prior sees the sites whose first match it is."""
        for pattern, prior in self.table.items():
            prior.observe(self._share(pattern, means), self._share(pattern, variances))

    def needs_marginals(self) -> frozenset[str]:
        """Those of all priors in the table."""
        return frozenset().union(*(prior.needs_marginals() for prior in self.table.values()))

    def relevance(self, name: str) -> Tensor | None:
        """That of the first pattern that matches."""
        pattern = self._first(name)
        return None if pattern is None else self.table[pattern].relevance(name)

    def _first(self, name: str) -> str | None:
        return next((pattern for pattern in self.table if fnmatchcase(name, pattern)), None)

    def _share(self, pattern: str, items: Mapping[str, Any]) -> dict[str, Any]:
        return {name: item for name, item in items.items() if self._first(name) == pattern}

    def config(self) -> dict[str, Any] | None:
        """The parts' descriptions, if all have one."""
        parts = {pattern: prior.config() for pattern, prior in self.table.items()}
        return None if None in parts.values() else {"name": "by_pattern", "table": parts}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Prior:
        """The inverse of ``config``."""
        return cls({pattern: from_config(part) for pattern, part in config["table"].items()})

    def describe(self) -> str:
        """Pattern by pattern."""
        return "; ".join(f"{pattern}: {prior.describe()}" for pattern, prior in self.table.items())


#: Priors by name, for ``prior="horseshoe"`` and the command line.
presets: Registry[Callable[[], Any]] = Registry("prior")


def as_prior(spec: Any) -> Prior:
    """A prior from a Prior, a torch distribution, a name in ``presets``, or a dict of patterns."""
    if isinstance(spec, Prior):
        return spec
    if isinstance(spec, str):
        return as_prior(presets[spec]())
    if isinstance(spec, Distribution):
        if spec.event_shape:
            raise SettingError(
                f"A prior must be elementwise; {spec} has event shape {tuple(spec.event_shape)}."
            )
        return Fixed(spec)
    if isinstance(spec, Mapping):
        return ByPattern(spec)
    raise SettingError(
        f"prior={spec!r}: expected a torch distribution, a credo prior, its name, a posterior, or "
        "a dict pattern -> prior."
    )
