"""Several named tensors as slices of one flat vector."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor


class FlatLayout:
    """Shapes by name, and where each lies: one kernel serves them all, instead of one each."""

    def __init__(self, shapes: Mapping[str, torch.Size]) -> None:
        self.shapes = dict(shapes)
        self.sizes = [math.prod(shape) for shape in self.shapes.values()]
        self.numel = sum(self.sizes)

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """Views by name; leading axes of ``flat`` stay in front."""
        lead = flat.shape[:-1]
        pieces = flat.split_with_sizes(self.sizes, -1)
        return {
            name: piece.reshape((*lead, *shape))
            for piece, (name, shape) in zip(pieces, self.shapes.items(), strict=True)
        }

    def join(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The flat vector of tensors that may have leading axes."""
        return torch.cat(
            [
                tensors[n].flatten(tensors[n].dim() - len(shape))
                if len(shape)
                else tensors[n].unsqueeze(-1)
                for n, shape in self.shapes.items()
            ],
            -1,
        )
