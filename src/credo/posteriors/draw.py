"""What one forward pass sees of a family of distributions over weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from credo.core.linear_map import LinearMap
from credo.core.seeds import Ambient, Noise

if TYPE_CHECKING:
    from credo.posteriors.family import Family

Params = dict[str, Tensor]


class Gate(NamedTuple):
    """Hard masks of one place: kept where ``uniform`` < sigmoid(``logit``); ``axis``: along which
    every example has its own.
    """

    logit: Tensor
    uniform: Tensor
    axis: int | None


class Draw(ABC):
    """What one forward pass sees of a family: latents drawn once, met by linear maps or turned into
    weights.

    Everything shared over the call is drawn when the object is made, before the network runs, so
    that checkpointed layers recompute with the same values.
    """

    kl: Tensor | None = None  # set where the family folds its KL into the draw
    drawn: Params | None = (
        # the latents of this pass, where all of them were drawn: a sampled KL uses the same draw
        None
    )
    #: (log q, sampled KL) of the pass, for the score function.
    scored: Sequence[tuple[Tensor, Tensor]] | None = None
    gates: Sequence[Gate] = ()  # of its hard masks with learned rates, as the pass meets them
    owner: Family  # the family it was drawn from
    #: How many for whom were drawn first, and the draws.
    _each: tuple[tuple[Any, ...], Params] | None = None

    @abstractmethod
    def weights(self, names: Iterable[str]) -> Params:
        """One joint draw of the named parameters."""

    def each(self, count: int, names: Sequence[str]) -> Params:
        """``count`` independent draws ``(count, *shape)``; a family whose parameters depend on each
        other is drawn whole, once.

        A checkpointed layer that drew during the forward pass draws again when it is recomputed,
        from the restored random state: it must save as many tensors as it did the first time.
        """
        noise = Ambient((count,))
        if self.owner.independent:
            return self.owner.draw(noise, names)
        again = (
            self._each is not None
            and self._each[0] == (count, *names)
            and torch._C._current_graph_task_id() != -1
        )
        if self._each is None or again or self._each[0][0] != count:
            self._each = (count, *names), self.owner.draw(noise)
        return self._each[1]

    def straight_through(self, names: Iterable[str]) -> Params:
        """A draw of discrete weights whose gradient is that of their mean; NotImplemented for
        continuous families.
        """
        return NotImplemented

    def relaxed(self, names: Iterable[str], temperature: float) -> Params:
        """A draw of discrete weights whose gradient is that of their Gumbel-softmax relaxation;
        NotImplemented likewise.
        """
        return NotImplemented

    def harden(self) -> None:
        """Make relaxed masks hard and keep their ``gates``; nothing where a family has no such
        masks.
        """

    def prepare(self) -> None:
        """Make whatever linear maps will need, before the network runs; nothing unless a family
        says otherwise.
        """

    def local(
        self, op: LinearMap, x: Tensor, w: str, b: str | Tensor | None, noise: Noise
    ) -> Tensor:
        """op(x, w) + b with the noise drawn on the output; NotImplemented where the family has no
        such form.
        """
        return NotImplemented

    def flipout(
        self, op: LinearMap, x: Tensor, w: str, b: str | Tensor | None, noise: Noise
    ) -> Tensor:
        """op(x, w) + b with one perturbation shared and its signs flipped per example;
        NotImplemented likewise.
        """
        return NotImplemented
