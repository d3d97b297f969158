"""Flipout: one perturbation per batch, decorrelated over examples by random signs (Wen et al.

2018).
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from credo.core.linear_map import LinearMap
from credo.core.seeds import Noise
from credo.estimators.base import Estimator, estimators
from credo.posteriors import Draw


class Flipout(Estimator):
    """Exact per input, convolutions included: every example sees one consistent set of weights."""

    name: ClassVar[str] = "flipout"
    pathwise: ClassVar[bool] = True
    meets_masks: ClassVar[bool] = False
    intercepts: ClassVar[bool] = True

    def meet(self, draw: Draw, op: LinearMap, x: Tensor, w: str, b: Any, noise: Noise) -> Tensor:
        """The family's own flipout form."""
        return draw.flipout(op, x, w, b, noise)


estimators.register("flipout")(Flipout())
