"""What the group-sparse methods share: which weights form groups, and the posterior over them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from credo.core.errors import SettingError
from credo.core.settings import setting
from credo.core.sites import Site, by_dtype
from credo.engine.model import Model
from credo.estimators import pathwise_estimators
from credo.methods.sparse.parts.settings import LateKLSettings
from credo.posteriors import Family, GroupScale, Params, Place, Posterior, scale_parts
from credo.priors import Fixed
from credo.priors.group_prior import GroupPrior


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
class GroupSettings(LateKLSettings):
    """Settings of methods whose weights share scales."""

    init_std: float = setting(
        0.1,
        "Initial standard deviation of every scale and of every weight, relative to the size of "
        "its group.",
        gt=0.0,
    )
    scale_lr: float = setting(
        1.0, "Learning rate of the scales, as a multiple of the weights'.", gt=0.0
    )
    estimator: str = setting(
        "local", "How noise enters training.", choices=pathwise_estimators(masks=True)
    )


@dataclass(frozen=True)
class HorseshoeSettings:
    """Settings of half-Cauchy scales."""

    scale_lr: float = setting(
        5.0, "Learning rate of the scales, as a multiple of the weights'.", gt=0.0
    )
    tau0: float = setting(
        1.0,
        "Scale of the half-Cauchy prior of every layer's global scale; smaller prunes more.",
        gt=0.0,
    )
    centred: bool = setting(
        False, "Whether scales are in the prior alone, instead of multiplying the weights."
    )


def under_scales(model: Model, places: Mapping[str, Place], scales: str, method: str) -> Model:
    """The model with only what has a place random, under the prior of these scales or under an
    earlier posterior; the rest, which is little, are points without a prior.
    """
    if not places:
        raise SettingError(
            f"{method}: none of the random parameters ({', '.join(model.random)}) is a "
            "weight with known units; groups need linear, "
            "convolutional, recurrent or embedding layers of torch."
        )
    if model.prior.earlier_posterior is not None:
        return model.only(places)
    part = scale_parts[scales]
    return replace(model.only(places), prior=Fixed(GroupPrior(part.label, part.proper)))


def group_posterior(
    model: Model,
    values: Params,
    places: Mapping[str, Place],
    scales: Mapping[str, Any],
    settings: GroupSettings,
    threshold: float,
    method: str,
    centred: bool = False,
) -> Posterior:
    """Gaussian weights and their scales, to begin a fit with.

    ``scales``: name and settings of the scales' posterior. Those of an earlier posterior, where
    that is the prior, since w = z v says little of z and v.
    """
    earlier = model.prior.earlier_posterior
    if earlier is not None:  # to go on from its very families, not from a density
        return model.with_points(_copied(earlier, method), values)
    families = []
    for sites in by_dtype(model.random):
        own = {site.name: values[site.name] for site in sites}
        families.append(
            GroupScale.start(own, places, scales, settings.init_std, threshold, centred)
        )
    return model.with_points(families, values)


def _copied(earlier: Posterior, method: str) -> list[Family]:
    found = [family for family in earlier.factors if family.atoms != 1]
    odd = [family.name for family in found if family.name != GroupScale.name]
    if odd:
        raise SettingError(
            f"{method}: the posterior given as prior holds {', '.join(odd)}; expected one "
            "of this method's own."
        )
    return [copy.deepcopy(family).requires_grad_() for family in found]
