"""Yesterday's posterior as today's prior."""

from __future__ import annotations

import copy
from collections.abc import Collection

import torch
from torch.distributions import Distribution

from credo.core.errors import CredoError, SettingError
from credo.core.sites import Site
from credo.posteriors.family import Family
from credo.posteriors.posterior import Posterior
from credo.priors import Prior
from credo.priors.base import JointLogProb


class PosteriorPrior(Prior):
    """Independent Gaussians are taken element by element, joint densities as a whole."""

    def __init__(self, posterior: Posterior) -> None:
        self.posterior = posterior

    @classmethod
    def after(cls, posterior: Posterior) -> PosteriorPrior:
        """A copy of a fitted posterior as the prior of more data; refused where that would forget
        what it has learned.
        """
        if posterior.atoms == 1:
            raise CredoError(
                "update needs a posterior with spread: a point estimate as prior would ignore the "
                "new data. Fit with 'vi' or 'exact'."
            )
        for family in posterior.factors:
            if family.atoms != 1 and (family.atoms or not family.kl_is_bound):
                raise CredoError(
                    f"update needs a posterior with a density to be the next prior; "
                    f"{family.name!r} has none. Fit with 'vi'."
                )
        return cls(copy.deepcopy(posterior))

    def at(self, site: Site) -> Distribution:
        """The marginal of one parameter under an independent family."""
        for family in self.posterior.factors:
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

    def joint_log_prob(self, names: Collection[str]) -> JointLogProb:
        """The sum over the earlier families; refused unless they have a density over exactly these
        parameters.
        """
        families = [f for f in self.posterior.factors if set(f.names) & set(names)]
        covered = sorted(name for f in families for name in f.names)
        if covered != sorted(names) or any(f.atoms is not None for f in families):
            raise SettingError(
                f"The earlier posterior ({self.describe()}) has no density over the same "
                "parameters; fit with 'vi' first."
            )
        return lambda params: torch.stack(
            [f.log_prob({n: params[n] for n in f.names}) for f in families]
        ).sum(0)

    def describe(self) -> str:
        """Which families."""
        return "posterior: " + ", ".join(family.name for family in self.posterior.factors)

    def joint_over(self, names: Collection[str]) -> Family | None:
        """The family over exactly these parameters, where its density is one of all of them."""
        for earlier in self.posterior.factors:
            if set(earlier.names) == set(names) and earlier.joint_prior:
                return earlier
        return None
