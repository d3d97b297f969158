"""Draw the weights, then run the network: works with everything, the default for prediction."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from credo.core.linear_map import LinearMap
from credo.core.seeds import Noise
from credo.estimators.base import Estimator, estimators
from credo.posteriors import Draw


class Weights(Estimator):
    """One draw of all weights per pass: unbiased, but every example of a batch shares it, so gradients vary most."""

    name: ClassVar[str] = "weights"
    intercepts: ClassVar[bool] = False

    def meet(self, draw: Draw, op: LinearMap, x: Tensor, w: str, b: Any, noise: Noise) -> Tensor:
        """Never intercepts."""
        return NotImplemented


estimators.register("weights")(Weights())
