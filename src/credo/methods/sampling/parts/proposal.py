"""What importance sampling asks of a proposal: a density, draws, and how far they are from the
target.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from credo.core.errors import CredoError
from credo.engine.model import Model
from credo.methods.sampling.parts.density import Density
from credo.methods.sampling.parts.full_batch import FullBatch
from credo.posteriors import Posterior

_TOGETHER = 1 << 24  # numbers drawn at once


@final
@dataclass(frozen=True)
class Proposal:
    """``num`` draws of a posterior, which can be made again from the seed rather than stored."""

    posterior: Posterior
    density: Density
    num: int
    seed: int

    def log_weights(self, target: FullBatch) -> Tensor:
        """log p(D, w_s) - log q(w_s) of every draw ``(S,)``."""
        families = [family for family in self.posterior.factors if family.atoms is None]
        out = []
        for draws, flat in self._blocks():
            with torch.no_grad():
                own = [f.log_prob({n: draws[n] for n in f.names}).double() for f in families]
                out.append(target.log_density(flat) - torch.stack(own).sum(0))
        return torch.cat(out)

    def take(self, numbers: Tensor) -> Tensor:
        """The draws with these numbers, ``(len(numbers), P)``."""
        density, start = self.density, 0
        out = torch.empty(
            len(numbers), density.numel, dtype=density.dtype, device=density.model.device
        )
        for _, flat in self._blocks():
            here = (numbers >= start) & (numbers < start + len(flat))
            out[here] = flat[numbers[here] - start]
            start += len(flat)
        return out

    def _blocks(self) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        """Draws by name and flat ``(S, P)``, some at a time."""
        size = max(1, min(1000, _TOGETHER // self.density.numel))
        layout, dtype = self.density.layout, self.density.dtype
        for start in range(0, self.num, size):
            with torch.no_grad():
                numbers = range(start, min(start + size, self.num))
                draws = self.posterior.realise(numbers, self.seed)
                yield draws, layout.join({n: draws[n].to(dtype) for n in layout.shapes})


def check_proposal(posterior: Posterior, model: Model) -> None:
    """A proposal must have a density over the random parameters, and over nothing else."""
    shapes = {name: shape for family in posterior.factors for name, shape in family.shapes.items()}
    for name, site in model.sites.items():
        if shapes.get(name) != site.shape:
            given = tuple(shapes[name]) if name in shapes else "nothing"
            raise CredoError(
                f"importance: the proposal has {given} where the model has {name!r} of shape "
                f"{tuple(site.shape)}; fit it to this model."
            )
    for family in posterior.factors:
        drawn = set(family.names) & set(model.random)
        if family.atoms is not None and drawn:
            raise CredoError(
                f"importance needs a proposal with a density; {family.name!r} has none: use 'vi' "
                "or 'flow'."
            )
        extra = sorted(set(family.names) - set(model.random))
        if family.atoms is None and extra:
            raise CredoError(
                f"importance: the proposal also draws {', '.join(extra)}, which the model holds; "
                "fit one with the same random parameters."
            )
