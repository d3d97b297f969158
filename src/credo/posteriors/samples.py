"""A finite set of draws: ensembles, chains, particles."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from credo.core.errors import CredoError
from credo.core.seeds import Noise
from credo.core.sites import FlatLayout
from credo.posteriors.family import Draw, Family, Params, families


@families.register("samples")
class Samples(Family):
    """q(w) = 1/S sum_s delta(w - w_s).

    Prediction visits each draw once, or evenly spaced ones if fewer are asked for.

    Draws of Markov chains lie chain after chain, ``chains`` of equal length, so that evenly spaced
    ones come from all of them.
    """

    name: ClassVar[str] = "samples"
    flat: Tensor
    chains: int

    def __init__(
        self,
        shapes: Mapping[str, Sequence[int]],
        count: int = 1,
        dtype: str = "float32",
        chains: int = 1,
    ) -> None:
        super().__init__(shapes)
        self.layout, self.atoms, self.chains = FlatLayout(self.shapes), count, chains
        self.register_buffer(
            "flat", torch.zeros(count, self.layout.numel, dtype=getattr(torch, dtype))
        )

    @classmethod
    def of(cls, draws: Mapping[str, Tensor]) -> Samples:
        """From stacked draws ``(S, *shape)`` by name."""
        counts = {len(value) for value in draws.values()}
        if len(counts) != 1 or 0 in counts:
            raise CredoError(
                "Samples need the same positive number of draws of every parameter, got "
                f"{sorted(counts)}."
            )
        first = next(iter(draws.values()))
        family = cls(
            {n: v.shape[1:] for n, v in draws.items()},
            counts.pop(),
            str(first.dtype).removeprefix("torch."),
        ).to(first.device)
        family.flat.copy_(family.layout.join({n: v.detach() for n, v in draws.items()}))
        return family

    @classmethod
    def hold(cls, flat: Tensor, shapes: Mapping[str, Sequence[int]], chains: int = 1) -> Samples:
        """From draws ``(S, P)`` as they are, without a copy: in memory, or mapped from a file."""
        family = cls(shapes, 1, str(flat.dtype).removeprefix("torch."), chains)
        family.atoms, family.flat = len(flat), flat
        return family

    @property
    def meaningless_mean(self) -> str | None:
        """Of several points."""
        several = (self.atoms or 0) > 1
        return "the mean of several modes is none of them" if several else None

    def begin(self, noise: Noise, fold: Any = None) -> SamplesDraw:
        """Pick a draw, fairly."""
        assert self.atoms is not None
        pick = noise.uniform(self.names[0], (), self.flat)
        return SamplesDraw(self, (pick * self.atoms).long().clamp_max(self.atoms - 1))

    def atom(self, index: Sequence[int], workspace: dict[object, Tensor] | None = None) -> Params:
        """The draws with these numbers, stacked; with a ``workspace`` they last until the next call
        that gets it.

        Chunks of a large network's draws, taken one after another, would otherwise leave holes that
        small tensors settle in.
        """
        rows = torch.tensor(list(index), device=self.flat.device)
        if workspace is None:
            return self.layout.split(self.flat[rows])
        key = ("atoms", self.names[0], len(rows))
        if key not in workspace:
            workspace[key] = self.flat.new_empty(len(rows), self.layout.numel)
        return self.layout.split(torch.index_select(self.flat, 0, rows, out=workspace[key]))

    def chain_draws(self) -> Params:
        """Views of ``flat``, so that chains on disk are read parameter by parameter."""
        return self.layout.split(self.flat.unflatten(0, (self.chains, -1)))

    def mean(self) -> Params:
        """Average over draws: not a likely point of a multimodal posterior."""
        return self.layout.split(self.flat.mean(0))

    def log_prob(self, latents: Params) -> Tensor:
        """A finite set of points has no density: always an error."""
        raise CredoError("A set of samples has no density; log_prob needs a parametric posterior.")

    def config(self) -> dict[str, Any]:
        """Shapes, number of draws, dtype, chains."""
        kind = str(self.flat.dtype).removeprefix("torch.")
        return super().config() | {"count": self.atoms, "dtype": kind, "chains": self.chains}


class SamplesDraw(Draw):
    """One pass of :class:`Samples`."""

    def __init__(self, family: Samples, index: Tensor) -> None:
        self.params = family.layout.split(family.flat[index])

    def weights(self, names: Iterable[str]) -> Params:
        """The picked draw."""
        return {name: self.params[name] for name in names}
