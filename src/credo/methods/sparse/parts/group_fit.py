"""What the group-sparse methods share: which weights form groups, the family over them, and a KL
that sets in late.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from credo.core.errors import SettingError
from credo.core.settings import setting
from credo.core.sites import Site
from credo.engine.elbo import Elbo
from credo.engine.elbo_fit import ElboMethod
from credo.engine.fit_job import FitJob
from credo.engine.initial_posterior import by_dtype, with_points
from credo.engine.model import Model
from credo.engine.training_loop import MakeOptimizer, adam
from credo.estimators import Estimator, estimators
from credo.posteriors import GroupScale, Place, Posterior, PosteriorPrior, scale_parts
from credo.priors import Fixed
from credo.priors.group_prior import Grouped


def side_of(site: Site, groups: str) -> str:
    """On which side of a weight its groups are: as asked, or what suits the layer.

    By default filters of convolutions, rows of stacked weights (a gate and unit of a recurrent
    layer, a unit of a projection of attention), and input units, or words, of everything else.
    """
    if groups != "auto":
        return groups
    words = site.in_axis == 0 and len(site.shape) == 2
    return "input" if words or (site.linear and len(site.shape) == 2) else "output"


def place_of(site: Site, side: str, bank: str) -> Place:
    """The groups of one weight along its input or its output units."""
    assert site.in_axis is not None
    axis = site.in_axis if side == "input" else 1 - site.in_axis
    return Place(bank, axis, site.groups, side)


def places_of(sites: Mapping[str, Site], groups: str) -> dict[str, Place]:
    """A bank of scales for every weight whose units are known."""
    return {
        n: place_of(s, side_of(s, groups), n) for n, s in sites.items() if s.in_axis is not None
    }


def unit_places(sites: Mapping[str, Site]) -> dict[str, Place]:
    """A bank for every layer: all incoming weights of an output unit, its bias and its recurrent
    weights included, share a scale.
    """
    banks: dict[str, str] = {}
    out = {}
    for name, site in sites.items():
        if site.in_axis is not None:
            out[name] = place_of(site, "output", banks.setdefault(_layer(site), name))
    for name, site in sites.items():
        weight = sites.get(site.partner) if site.partner else None
        if (
            name not in out
            and len(site.shape) == 1
            and (bank := banks.get(_layer(weight or site))) is not None
        ):
            out[name] = Place(bank, 0, 1, "output")
    return {name: out[name] for name in sites if name in out}


def _layer(site: Site) -> str:
    """What the parameters of one layer have in common: their weight's name, or the module and layer
    number of recurrent ones.
    """
    leaf = site.name.rpartition(".")[2]
    kind, found, rest = leaf.partition("_ih")
    if not found:
        kind, found, rest = leaf.partition("_hh")
    return f"{site.module}/{rest}" if found and kind in ("weight", "bias") else site.name


@dataclass(frozen=True)
class GroupMethod(ElboMethod):
    """Groups of weights with a scale each; a method says which posterior the scales have."""

    lr_schedule: str = setting(
        "linear", "Course of the learning rate.", choices=("constant", "cosine", "linear")
    )
    kl_schedule: str = setting(
        "late", "Course of the KL's weight.", choices=("constant", "linear", "cosine", "late")
    )
    kl_warmup: int = setting(
        20,
        "Epochs until the KL counts fully; 'late' leaves it out for the first quarter of them.",
        ge=0,
    )
    init_std: float = setting(
        0.1,
        "Initial standard deviation of every scale and of every weight, relative to the size of "
        "its group.",
        gt=0.0,
    )
    threshold: float = setting(3.0, "Score from which a group is pruned.")
    scale_lr: float = setting(
        1.0, "Learning rate of the scales, as a multiple of the weights'.", gt=0.0
    )
    estimator: str = setting(
        "local", "How noise enters training.", choices=("local", "weights", "per_example")
    )

    @abstractmethod
    def places(self, sites: Mapping[str, Site]) -> dict[str, Place]:
        """The groups of every parameter that has some."""

    @abstractmethod
    def scales(self) -> dict[str, Any]:
        """Name and settings of the posterior of the scales."""

    def is_centred(self) -> bool:
        """Whether scales are in the prior alone; they multiply the weights unless a method says
        otherwise.
        """
        return False

    def adapt(self, model: Model) -> Model:
        """What has groups is random under the prior of the groups, or under an earlier posterior;
        the rest, which is little, are points without a prior.
        """
        places = self.places(model.random)
        if not places:
            raise SettingError(
                f"{self.name}: none of the random parameters ({', '.join(model.random)}) is a "
                "weight with known units; groups need linear, "
                "convolutional, recurrent or embedding layers of torch."
            )
        part = scale_parts[self.scales()["name"]]
        earlier = isinstance(model.prior, PosteriorPrior)
        return replace(
            model.only(places),
            prior=model.prior if earlier else Fixed(Grouped(part.label, part.proper)),
        )

    def make_posterior(self, model: Model, fit_job: FitJob) -> Posterior:
        """Gaussian weights and scales; those of an earlier posterior, where that is the prior,
        since w = z v says little of z and v.
        """
        values, places = self.start(model, fit_job), self.places(model.random)
        if isinstance(model.prior, PosteriorPrior):
            return with_points(
                model,
                values,
                [copy.deepcopy(earlier).requires_grad_() for earlier in self._earlier(model.prior)],
            )
        families = []
        for group in by_dtype(model.random):
            own = {site.name: values[site.name] for site in group}
            families.append(
                GroupScale.start(
                    own, places, self.scales(), self.init_std, self.threshold, self.is_centred()
                )
            )
        return with_points(model, values, families)

    def _earlier(self, prior: PosteriorPrior) -> list[GroupScale]:
        found = [family for family in prior.posterior.members if family.atoms != 1]
        odd = [family.name for family in found if not isinstance(family, GroupScale)]
        if odd:
            raise SettingError(
                f"{self.name}: the posterior given as prior holds {', '.join(odd)}; expected one "
                "of this method's own."
            )
        return [family for family in found if isinstance(family, GroupScale)]

    def make_optimizer(self, model: Model) -> MakeOptimizer[Elbo] | None:
        """Adam, faster for scales: one number steers a whole group."""
        return partial(adam, rate_lr=self.scale_lr)

    def make_estimator(self) -> Estimator:
        """The chosen estimator."""
        return estimators[self.estimator]
