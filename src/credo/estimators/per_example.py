"""Separate weights for every example of a batch: the costly reference that local reparameterization
imitates.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from credo.core.linear_map import LinearMap
from credo.core.seeds import Noise
from credo.estimators.base import Estimator, estimators
from credo.posteriors import Draw


class PerExample(Estimator):
    """Example i runs through its own draw w_i ~ q: exact for every layer and family, at B times the
    memory of the weights.

    Weights that local noise could not meet either (attention, recurrent layers, tied ones) are
    drawn once for the batch.
    """

    name: ClassVar[str] = "per_example"
    pathwise: ClassVar[bool] = True
    intercepts: ClassVar[bool] = True

    def meet(self, draw: Draw, op: LinearMap, x: Tensor, w: str, b: Any, noise: Noise) -> Tensor:
        """The map under vmap, with a weight per example."""
        axis = op.example_axis
        if axis is None:
            return NotImplemented
        sets = draw.each(x.shape[axis], (w, b) if isinstance(b, str) else (w,))
        bias = sets[b] if isinstance(b, str) else b

        def one(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
            return op(x.unsqueeze(axis), w, b).squeeze(axis)

        return torch.vmap(one, (axis, 0, 0 if isinstance(b, str) else None), axis)(x, sets[w], bias)


estimators.register("per_example")(PerExample())
