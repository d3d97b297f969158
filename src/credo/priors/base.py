"""What a prior is: an elementwise distribution for every random parameter."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from credo.core.errors import CredoError, SettingError, nearest
from credo.core.registry import Registry
from credo.core.sites import Site
from credo.priors.stored import of_config, to_config

if TYPE_CHECKING:
    from credo.priors.scaled import Scaled
#: Parameters ``(..., *shape)`` by name to their log density ``(...)``.
JointLogProb = Callable[[Mapping[str, Tensor]], Tensor]


class Prior(ABC):
    """Gives each site its distribution over single weights, whose log density sums over the site's
    elements.

    A prior with hyperparameters of its own also says what a fit starts from (``fresh``), what it
    learns (``parts``), what that costs (``penalty``) and what it takes from q in closed form
    (``observe``). The defaults are those of a fixed prior.
    """

    @abstractmethod
    def at(self, site: Site) -> Distribution:
        """The distribution of one element of ``site``, or of all of them if its batch shape is the
        site's.
        """

    @abstractmethod
    def describe(self) -> str:
        """One line for reports and run files."""

    def config(self) -> dict[str, Any] | None:
        """A JSON-able description for run files, or None where there is none; then loading needs
        the prior given again.
        """
        return None

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Prior:
        """The inverse of ``config``: the structure.

        Learned numbers come through the state of ``fresh(sites).parts()``.
        """
        raise CredoError(
            f"{cls.__name__} has no stored form ({dict(config)}); give the prior again."
        )

    def fresh(self, sites: Mapping[str, Site]) -> Prior:
        """The prior a fit over ``sites`` starts from: itself where nothing is learned."""
        return self

    def parts(self) -> list[nn.Module]:
        """The modules that hold what is learned; their parameters are trained, their buffers kept
        by ``observe``.
        """
        return []

    def joint_over(self, names: Collection[str]) -> Any | None:
        """A density over exactly these parameters together, where the prior is not elementwise."""
        return None

    def matches(self, name: str) -> bool:
        """Whether the user named a prior for this very parameter."""
        return False

    @property
    def tunable(self) -> Scaled | None:
        """Itself where a method sets its width from outside; None for any other prior."""
        return None

    @property
    def earlier_posterior(self) -> Any:
        """The :class:`Posterior` of an earlier fit that is the prior of this one; None for any
        other prior.
        """
        return None

    def penalty(self) -> Tensor | None:
        """-log of the hyperprior, summed, in nats; None where there is none."""
        return None

    def observe(self, means: Mapping[str, Tensor], variances: Mapping[str, Tensor]) -> None:
        """Closed-form updates from q's marginal means and variances, called once per step with
        every site, before ``at``.
        """
        return None

    def needs_marginals(self) -> frozenset[str]:
        """Parameters whose distribution ``observe`` sets: q must have marginals over them."""
        return frozenset()

    def joint_log_prob(self, names: Collection[str]) -> JointLogProb | None:
        """The log density of all parameters ``names`` at once, where it does not factorise over
        them; None where ``at`` says it all.
        """
        return None

    def relevance(self, name: str) -> Tensor | None:
        """Learned prior standard deviation of each input feature of the parameter ``name``; None
        where nothing is learned of it.
        """
        return None


#: Name in a run file -> class of prior, which rebuilds itself by ``from_config``.
kinds: Registry[type[Prior]] = Registry("prior")


def from_config(config: Mapping[str, Any]) -> Prior:
    """The inverse of ``Prior.config``."""
    return kinds[config["name"]].from_config(config)


@kinds.register("fixed")
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
        """Class name and arguments, where they are numbers or short vectors of a distribution in
        ``stored``.
        """
        described = to_config(self.distribution)
        return None if described is None else {"name": "fixed", **described}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Prior:
        """The inverse of ``config``."""
        return cls(of_config(config))


@dataclass(frozen=True)
class Unstored(Prior):
    """Stands for the prior of a loaded run that had no JSON form: predictions do not need it,
    anything else says so.
    """

    text: str

    def at(self, site: Site) -> Distribution:
        """Always an error."""
        raise CredoError(
            f"The prior of this run ({self.text}) could not be stored with it; give it again: "
            "credo.load(path, net, prior=...)."
        )

    def describe(self) -> str:
        """As it was described when it was saved."""
        return self.text


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


def move(distribution: Distribution, dtype: torch.dtype, device: torch.device) -> Distribution:
    """The same distribution with its tensors in another dtype and on another device."""
    clone = object.__new__(type(distribution))
    for key, value in distribution.__dict__.items():
        if isinstance(value, Distribution):
            value = move(value, dtype, device)
        elif isinstance(value, Tensor):
            value = value.to(device, dtype if value.is_floating_point() else None)
        clone.__dict__[key] = value
    # validation reads its verdict back from the device at every step, which no graph can capture
    clone._validate_args = False
    return clone
