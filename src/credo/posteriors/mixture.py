"""A mixture of posteriors: ensembles of variational posteriors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from credo.core.errors import CredoError
from credo.core.seeds import Noise
from credo.posteriors.draw import Draw, Params
from credo.posteriors.family import Family, families
from credo.posteriors.posterior import Posterior


@families.register("mixture")
class Mixture(Family):
    """q(w) = sum_k pi_k q_k(w), each component a whole :class:`Posterior` over the same
    parameters.
    """

    name: ClassVar[str] = "mixture"
    log_weights: Tensor

    def __init__(
        self,
        shapes: Mapping[str, Sequence[int]],
        components: Sequence[dict[str, Any]] | Sequence[Posterior] = (),
    ) -> None:
        super().__init__(shapes)
        if not components:
            raise CredoError("A mixture needs at least one component.")
        self.components = nn.ModuleList(
            c if isinstance(c, Posterior) else Posterior.from_config(c) for c in components
        )
        count = len(self.components)
        self.register_buffer("log_weights", torch.full((count,), -math.log(count)))

    @classmethod
    def of(cls, components: Sequence[Posterior], weights: Sequence[float] | None = None) -> Mixture:
        """From fitted posteriors over the same parameters, with equal weights unless given."""
        names = {frozenset(c.names) for c in components}
        if len(names) != 1:
            raise CredoError("The components of a mixture must cover the same parameters.")
        mixture = cls({n: v.shape for n, v in components[0].mean().items()}, components)
        if weights is not None:
            mixture.log_weights.copy_(
                torch.tensor(list(weights), dtype=torch.float64).log().log_softmax(0)
            )
        return mixture

    @property
    def meaningless_mean(self) -> str:
        """Of several modes."""
        return "the mean of several modes is none of them"

    @property
    def parts(self) -> list[Posterior]:
        """The components, typed."""
        return list(self.components)  # type: ignore[arg-type]

    def begin(self, noise: Noise, fold: Any = None) -> MixtureDraw:
        """Pick a component per draw."""
        return MixtureDraw(self, noise)

    def mean(self) -> Params:
        """sum_k pi_k E_k[w]: between modes it is a likely point of none."""
        means = [part.mean() for part in self.parts]
        weights = self.log_weights.exp()
        return {
            n: sum(w.to(m[n]) * m[n] for w, m in zip(weights, means, strict=True))
            for n in self.names
        }  # type: ignore[misc]

    def log_prob(self, latents: Params) -> Tensor:
        """log sum_k pi_k q_k(w)."""
        parts = torch.stack([part.log_prob(latents) for part in self.parts], -1)
        return torch.logsumexp(parts + self.log_weights.to(parts), -1)

    def config(self) -> dict[str, Any]:
        """Shapes and the components' descriptions."""
        return super().config() | {"components": [part.config() for part in self.parts]}


class MixtureDraw(Draw):
    """One pass of a :class:`Mixture`: every component is drawn with the same noise and one is taken
    per draw.
    """

    def __init__(self, family: Mixture, noise: Noise) -> None:
        first = next(iter(family.parts[0].parameters()))
        pick = noise.uniform(f"{family.names[0]}/component", (), first)
        edges = family.log_weights.exp().cumsum(0).to(pick)
        index = torch.searchsorted(edges, pick.contiguous(), right=True).clamp_max(len(edges) - 1)
        draws = [part.draw(noise) for part in family.parts]
        self.params = {n: _take([d[n] for d in draws], index) for n in family.names}

    def weights(self, names: Iterable[str]) -> Params:
        """The picked component's draw."""
        return {name: self.params[name] for name in names}


def _take(options: list[Tensor], index: Tensor) -> Tensor:
    """options[index[s]][s] for every leading position s."""
    stacked = torch.stack(options)
    if index.dim() == 0:
        return stacked[index]
    return stacked[index, torch.arange(len(index), device=index.device)]
