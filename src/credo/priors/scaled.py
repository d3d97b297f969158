"""A normal prior whose width is set from outside, by a method that can tell which width explains
the data best.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Normal

from credo.core.errors import SettingError
from credo.core.sites import Site
from credo.priors.base import Prior, from_config, kinds, state_name
from credo.priors.sharing import groupings

WIDTH = "log_precision"


@final
@kinds.register("scaled")
class Scaled(nn.Module, Prior):
    """``prior`` with its precision times a factor, one for every group of weights: "global",
    "layer" or "tensor".

    Factors are no parameters: no descent moves them. ``set`` puts them in; they start at 1.
    """

    def __init__(self, prior: Prior, per: str = "global") -> None:
        super().__init__()
        if per not in ("global", "layer", "tensor"):
            raise SettingError(f"Scaled: per={per!r}; expected 'global', 'layer' or 'tensor'.")
        self.base, self.per = prior, per
        self._places: dict[str, str] = {}
        self._known: dict[
            tuple[Any, ...], Distribution
        ] = {}  # of a fixed prior, by site: a captured graph may not fetch them

    def fresh(self, sites: Mapping[str, Site]) -> Prior:
        """A copy with a factor for every group of these sites."""
        out = Scaled(self.base.fresh(sites), self.per)
        for name, site in sites.items():
            out._places[name] = state_name(WIDTH, groupings[self.per].key(site))
            if not hasattr(out, out._places[name]):
                out.register_buffer(
                    out._places[name], torch.zeros((), dtype=torch.float64, device=site.device)
                )
        return out

    @property
    def tunable(self) -> Scaled:
        return self

    def groups(self) -> list[list[str]]:
        """Names of the parameters that share a factor."""
        found: dict[str, list[str]] = {}
        for name, place in self._places.items():
            found.setdefault(place, []).append(name)
        return list(found.values())

    def set(self, scales: Mapping[str, Tensor]) -> None:
        """Logarithms of the factors on the precision, by parameter."""
        for name, value in scales.items():
            getattr(self, self._places[name]).copy_(value.detach())

    def scales(self) -> dict[str, Tensor]:
        """Logarithms of the factors as they stand, by parameter."""
        return {name: getattr(self, place) for name, place in self._places.items()}

    def matches(self, name: str) -> bool:
        """As the prior inside."""
        return self.base.matches(name)

    def at(self, site: Site) -> Distribution:
        """The normal of one parameter, narrower or wider."""
        normal = self._normal(site)
        if type(normal) is not Normal:
            raise SettingError(
                f"The width of the prior of {site.name!r} cannot be tuned: it is {normal}, not a "
                "normal; give a normal prior, or use tune='none'."
            )
        place = self._places.get(site.name)
        if place is None:
            return normal
        factor = torch.exp(-0.5 * getattr(self, place)).to(normal.scale)
        return Normal(normal.loc, normal.scale * factor, validate_args=False)

    def _normal(self, site: Site) -> Distribution:
        if self.base.parts():
            return self.base.at(site)
        key = (site.name, site.dtype, site.device)
        if key not in self._known:
            self._known[key] = self.base.at(site)
        return self._known[key]

    def needs_marginals(self) -> frozenset[str]:
        """Those of the prior it scales."""
        return self.base.needs_marginals()

    def parts(self) -> list[nn.Module]:
        """Itself, so that its factors are stored with a fit."""
        return [self]

    def describe(self) -> str:
        """In words."""
        return (
            f"{self.base.describe()}, precision tuned per {self.per}"
            if self.per != "global"
            else f"{self.base.describe()}, precision tuned"
        )

    def config(self) -> dict[str, Any] | None:
        """The structure; the factors are in the state."""
        base = self.base.config()
        return None if base is None else {"name": "scaled", "prior": base, "per": self.per}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Prior:
        """The inverse."""
        return cls(from_config(config["prior"]), config["per"])
