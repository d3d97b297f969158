"""Graves' optimal prior: at every step the normal that minimises the KL, in closed form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Normal

from credo.core.errors import SettingError
from credo.core.sites import Site
from credo.priors.base import Prior, kinds, state_name
from credo.priors.sharing import Grouping, find, groupings, relevance, sizes


@kinds.register("optimal")
class Optimal(nn.Module, Prior):
    """N(m, v) per group of weights, with m = average of mu_i and v = average of sigma_i^2 + (mu_i -
    m)^2 (Graves 2011).

    These minimise sum_i KL[N(mu_i, sigma_i^2), N(m, v)]. The statistics are detached: at the
    minimum the derivative with respect to m and v is zero, so the gradient of the KL needs no path
    through them. ``centred=True`` keeps m = 0; with ``per="weight"`` that is automatic relevance
    determination: v = mu^2 + sigma^2, KL = 1/2 log(1 + mu^2 / sigma^2). Before the first
    ``observe`` it is N(0, 1). Nothing bounds v from below: under a point estimate it shrinks with
    the weights towards a collapse.
    """

    def __init__(self, per: str = "global", centred: bool = False) -> None:
        super().__init__()
        self.per, self.centred = per, centred
        self.sites: dict[str, Site] = {}
        if self.grouping is groupings["weight"] and not centred:
            raise SettingError(
                "Optimal(per='weight', centred=False) makes the prior of every weight its own "
                "posterior, and the KL zero; "
                "use centred=True (ARD) or a coarser per=, e.g. 'layer'."
            )

    @property
    def grouping(self) -> Grouping:
        """What ``per`` names."""
        return groupings[self.per]

    def fresh(self, sites: Mapping[str, Site]) -> Prior:
        """A new prior at N(0, 1) with buffers for every group of ``sites``."""
        out = Optimal(self.per, self.centred)
        out.sites = dict(sites)
        for key, (n, site) in sizes(self.per, sites).items():
            for label, value in (("mean", 0.0), ("var", 1.0)):
                out.register_buffer(
                    state_name(label, key),
                    torch.full((n,), value, dtype=site.dtype, device=site.device),
                )
        return out

    def parts(self) -> list[nn.Module]:
        """Itself: buffers only, nothing to train."""
        return [self]

    def needs_marginals(self) -> frozenset[str]:
        """All it is over."""
        return frozenset(self.sites)

    @torch.no_grad()
    def observe(self, means: Mapping[str, Tensor], variances: Mapping[str, Tensor]) -> None:
        """Set mean and variance of every group that has a site in ``means`` from q's marginals."""
        sites = [find(name, self.sites, "optimal") for name in means]
        if not self.centred:
            self._average("mean", {site.name: means[site.name] for site in sites})
        moments = {}
        for site in sites:
            centre = self.grouping.to_elements(self._buffer("mean", site), site)
            moments[site.name] = variances[site.name] + (means[site.name] - centre) ** 2
        self._average("var", moments)

    def _average(self, label: str, elements: Mapping[str, Tensor]) -> None:
        """Set the buffers to the averages of ``elements`` over groups, which may span several
        sites.
        """
        sums: dict[str, list[Tensor]] = {}
        counts: dict[str, float] = {}
        for name, values in elements.items():
            site = self.sites[name]
            key, buffer = self.grouping.key(site), self._buffer(label, site)
            sums.setdefault(key, []).append(self.grouping.collapse(values, site).to(buffer))
            counts[key] = counts.get(key, 0.0) + site.numel / self.grouping.size(site)
        for key, parts in sums.items():
            self.get_buffer(state_name(label, key)).copy_(sum(parts[1:], parts[0]) / counts[key])

    def _buffer(self, label: str, site: Site) -> Tensor:
        return self.get_buffer(state_name(label, self.grouping.key(site)))

    def at(self, site: Site) -> Distribution:
        """The normal of one parameter; its variance is held above the smallest normal number."""
        if not self.sites:
            zero = torch.zeros((), dtype=site.dtype, device=site.device)
            return Normal(zero, torch.ones_like(zero), validate_args=False)
        site = find(site.name, self.sites, "optimal")
        mean, var = (
            self._buffer("mean", site).clone(),
            self._buffer("var", site),
        )  # a clone: observe writes in place
        scale = var.clamp(min=torch.finfo(var.dtype).tiny).sqrt()
        return Normal(
            self.grouping.to_elements(mean, site),
            self.grouping.to_elements(scale, site),
            validate_args=False,
        )

    def values(self) -> dict[str, dict[str, Tensor]]:
        """Group -> {"loc", "scale"}, each (n,)."""
        return {
            key: {
                "loc": self.get_buffer(state_name("mean", key)).clone(),
                "scale": self.get_buffer(state_name("var", key)).sqrt(),
            }
            for key in sizes(self.per, self.sites)
        }

    def relevance(self, name: str) -> Tensor:
        """Prior standard deviation of each input feature of the parameter called ``name``,
        (in_features,); needs per="input".
        """
        site = find(name, self.sites, "optimal")
        return relevance(self.at(site), site, self.per)

    def describe(self) -> str:
        """How it is shared."""
        return f"optimal normal per {self.per}{', mean 0' if self.centred else ''}"

    def config(self) -> dict[str, Any]:
        """The structure; the numbers are in the state of the module."""
        return {"name": "optimal", "per": self.per, "centred": self.centred}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Prior:
        """The inverse of ``config``: the prior before it saw a posterior."""
        return cls(config["per"], config["centred"])
