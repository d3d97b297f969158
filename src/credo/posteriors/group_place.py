"""Where the groups of weights that share a scale lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from credo.core.errors import CredoError


class Place(NamedTuple):
    """Where the groups of a parameter lie: in which bank of scales, along which axis, in how many
    groups of channels, on which side of the layer.

    ``side`` is "input" or "output": whether the units of the groups are what a layer reads or what
    it gives. In a grouped convolution axis 1 counts channels within a group of channels.
    """

    bank: str
    axis: int
    groups: int = 1
    side: str = "input"

    def count(self, shape: Sequence[int]) -> int:
        """How many groups a parameter of this shape has."""
        return shape[self.axis] * (self.groups if self.axis == 1 else 1)

    def over(self, values: Tensor, shape: Sequence[int]) -> Tensor:
        """Numbers ``(..., G)`` shaped to broadcast against the parameter ``(..., *shape)``."""
        lead, rest = values.shape[:-1], [1] * (len(shape) - 2)
        if self.axis == 1 and self.groups > 1:
            per_output = values.reshape(*lead, self.groups, 1, shape[1]).expand(
                *lead, self.groups, shape[0] // self.groups, shape[1]
            )
            return per_output.reshape(*lead, shape[0], shape[1], *rest)
        return values.reshape(
            *lead, *[-1 if place == self.axis else 1 for place in range(len(shape))]
        )

    def sums(self, values: Tensor) -> Tensor:
        """Sums ``(G,)`` over the groups of a parameter: the adjoint of ``over``."""
        if self.axis == 1 and self.groups > 1:
            return (
                values.reshape(self.groups, len(values) // self.groups, values.shape[1], -1)
                .sum((1, 3))
                .reshape(-1)
            )
        return values.movedim(self.axis, 0).reshape(values.shape[self.axis], -1).sum(1)


def bank_counts(shapes: Mapping[str, Sequence[int]], places: Mapping[str, Place]) -> dict[str, int]:
    """Groups of every bank; an error where parameters of one bank have different numbers of
    them.
    """
    counts: dict[str, int] = {}
    for name, place in places.items():
        count = place.count(shapes[name])
        if counts.setdefault(place.bank, count) != count:
            raise CredoError(
                f"{name} has {count} groups along axis {place.axis}, but its bank of scales "
                f"{place.bank!r} has {counts[place.bank]}."
            )
    return counts
