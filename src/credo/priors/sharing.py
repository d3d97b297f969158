"""Which weights share a hyperparameter: the groupings of learned and optimal priors.

A grouping gives every site a key, which names a vector of values (n,), and a layout, which says how
that vector meets the site's elements. Sites with the same key share the vector.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Distribution

from credo.core.errors import CredoError, SettingError
from credo.core.registry import Registry
from credo.core.sites import Site


class SharedLayout(ABC):
    """How n values lie on a tensor.

    ``to_elements`` copies a value to its elements, ``collapse``, its adjoint, sums them again.
    """

    @abstractmethod
    def size(self, shape: torch.Size) -> int:
        """n."""

    @abstractmethod
    def to_elements(self, values: Tensor, shape: torch.Size) -> Tensor:
        """Values (n,) in ``shape``, or as a single number where n = 1 by design; views where that
        is possible.
        """

    @abstractmethod
    def collapse(self, elements: Tensor) -> Tensor:
        """Sums (n,) over the elements that share a value."""


class One(SharedLayout):
    """One value for the whole tensor."""

    def size(self, shape: torch.Size) -> int:
        """1."""
        return 1

    def to_elements(self, values: Tensor, shape: torch.Size) -> Tensor:
        """The number."""
        return values.reshape(())

    def collapse(self, elements: Tensor) -> Tensor:
        """The sum of everything."""
        return elements.sum().reshape(1)


class Each(SharedLayout):
    """A value per element."""

    def size(self, shape: torch.Size) -> int:
        """The number of elements."""
        return shape.numel()

    def to_elements(self, values: Tensor, shape: torch.Size) -> Tensor:
        """The values in the tensor's shape."""
        return values.reshape(shape)

    def collapse(self, elements: Tensor) -> Tensor:
        """The elements in a row."""
        return elements.reshape(-1)


class First(SharedLayout):
    """A value per index of the first axis."""

    def size(self, shape: torch.Size) -> int:
        """The length of the axis."""
        return shape[0]

    def to_elements(self, values: Tensor, shape: torch.Size) -> Tensor:
        """The values along the first axis."""
        return values.reshape(-1, *[1] * (len(shape) - 1)).expand(shape)

    def collapse(self, elements: Tensor) -> Tensor:
        """Sums over all other axes."""
        return elements.reshape(len(elements), -1).sum(1)


@dataclass(frozen=True)
class Second(SharedLayout):
    """A value per channel of the second axis of a weight whose first axis runs through ``groups``
    groups of channels in turn.

    In a grouped convolution the second axis counts channels within a group: channel j of group g
    has value g * shape[1] + j.
    """

    groups: int = 1

    def size(self, shape: torch.Size) -> int:
        """Channels over all groups."""
        return shape[1] * self.groups

    def to_elements(self, values: Tensor, shape: torch.Size) -> Tensor:
        """The values along the second axis, group by group."""
        rest = [1] * (len(shape) - 2)
        rows = values.reshape(self.groups, 1, shape[1]).expand(
            -1, shape[0] // self.groups if self.groups > 1 else 1, -1
        )
        return rows.reshape(-1, shape[1], *rest).expand(shape)

    def collapse(self, elements: Tensor) -> Tensor:
        """Sums over the rows of a group and over all later axes."""
        grouped = elements.reshape(self.groups, len(elements) // self.groups, elements.shape[1], -1)
        return grouped.sum((1, 3)).reshape(-1)


@dataclass(frozen=True)
class Grouping:
    """One way to share values; ``single`` ones have one value per key, which may then itself be a
    vector.
    """

    key: Callable[[Site], str]
    layout: Callable[[Site], SharedLayout]
    single: bool = False

    def size(self, site: Site) -> int:
        """How many values the site's vector holds."""
        return self.layout(site).size(site.shape)

    def to_elements(self, values: Tensor, site: Site) -> Tensor:
        """The site's values in its shape, dtype and on its device."""
        return self.layout(site).to_elements(values.to(site.device, site.dtype), site.shape)

    def collapse(self, elements: Tensor, site: Site) -> Tensor:
        """Sums over the elements of the site that share a value."""
        return self.layout(site).collapse(elements)


def _unit(site: Site) -> SharedLayout:
    if site.linear and site.transposed:
        return Second(site.groups)
    return First() if site.shape else One()


def _input(site: Site) -> SharedLayout:
    if len(site.shape) < 2:
        return One()
    return First() if site.linear and site.transposed else Second(site.groups if site.linear else 1)


def _name(site: Site) -> str:
    return site.name


#: The values of ``per=``. A row of an embedding counts as a unit, a column as an input feature.
groupings: Registry[Grouping] = Registry("grouping per=")
groupings.register("global")(Grouping(lambda site: "all", lambda site: One(), single=True))
groupings.register("layer")(Grouping(lambda site: site.module, lambda site: One(), single=True))
groupings.register("tensor")(Grouping(_name, lambda site: One(), single=True))
groupings.register("unit")(Grouping(lambda site: site.partner or site.name, _unit))
groupings.register("input")(Grouping(_name, _input))
groupings.register("weight")(Grouping(_name, lambda site: Each()))

#: The groupings that give every input feature a value of its own.
RELEVANCE = ("input", "weight")


def sizes(per: str, sites: Mapping[str, Site]) -> dict[str, tuple[int, Site]]:
    """Key -> (n, the first site that has it), in the order of the sites."""
    grouping = groupings[per]
    out: dict[str, tuple[int, Site]] = {}
    for site in sites.values():
        out.setdefault(grouping.key(site), (grouping.size(site), site))
    return out


def find(name: str, sites: Mapping[str, Site], owner: str) -> Site:
    """The site of that name, or an error that says what the prior was made for."""
    if name not in sites:
        known = (
            ", ".join(sites) or "no parameter yet: fresh(sites) makes it for a network's parameters"
        )
        raise CredoError(
            f"This {owner} prior has no hyperparameters for {name!r}; it was made for {known}."
        )
    return sites[name]


def relevance(distribution: Distribution, site: Site, per: str) -> Tensor:
    """Prior standard deviation per input feature (in_features,): the root mean square over a
    feature's weights.
    """
    if per not in RELEVANCE:
        raise SettingError(
            f"per={per!r} gives input features no values of their own; relevance needs "
            "per='input' or per='weight'."
        )
    if len(site.shape) < 2:
        raise CredoError(
            f"{site.name!r} of shape {tuple(site.shape)} has no input features; relevance needs a "
            "weight with two axes."
        )
    var = distribution.variance.detach().expand(site.shape)
    if not bool(torch.isfinite(var).all()):
        raise CredoError(
            f"{distribution} has no finite standard deviation; look at its scale in values() "
            "instead."
        )
    layout = _input(site)
    return (layout.collapse(var) / (site.numel / layout.size(site.shape))).sqrt()
