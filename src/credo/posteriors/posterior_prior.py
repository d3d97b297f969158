"""Yesterday's posterior as today's prior."""

from __future__ import annotations

from collections.abc import Collection

from torch.distributions import Distribution

from credo.core.errors import CredoError
from credo.core.sites import Site
from credo.posteriors.family import Family
from credo.posteriors.posterior import Posterior
from credo.priors import Prior


class PosteriorPrior(Prior):
    """Independent Gaussians are taken element by element, joint densities as a whole."""

    def __init__(self, posterior: Posterior) -> None:
        self.posterior = posterior

    def at(self, site: Site) -> Distribution:
        """The marginal of one parameter under an independent family."""
        for family in self.posterior.members:
            if site.name in family.names:
                if family.elementwise is not None:
                    return family.elementwise[site.name]
                raise CredoError(
                    f"{site.name!r} has no elementwise prior: the earlier posterior is "
                    f"{family.name!r} over {family.names}."
                )
        raise CredoError(
            f"The posterior given as prior does not cover {site.name!r}; it covers "
            f"{', '.join(self.posterior.names)}."
        )

    @property
    def earlier_posterior(self) -> Posterior:
        return self.posterior

    def describe(self) -> str:
        """Which families."""
        return "posterior: " + ", ".join(family.name for family in self.posterior.members)

    def joint_over(self, names: Collection[str]) -> Family | None:
        """The family over exactly these parameters, where its density is one of all of them."""
        for earlier in self.posterior.members:
            if set(earlier.names) == set(names) and earlier.joint_prior:
                return earlier
        return None
