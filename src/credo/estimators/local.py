"""Local reparameterization: noise on the outputs of linear maps (Kingma, Salimans and Welling
2015).
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from credo.core.linear_map import LinearMap
from credo.core.seeds import Noise
from credo.estimators.base import Estimator, estimators
from credo.posteriors import Draw


class Local(Estimator):
    """Each output element gets its own noise of the right mean and variance: low gradient variance.

    Exact per input for fully connected layers. Where a weight is shared over positions
    (convolutions, sequences) the positions are treated as independent, which understates the
    variance after pooling: good for training, never the default for prediction.
    """

    name: ClassVar[str] = "local"
    pathwise: ClassVar[bool] = True
    intercepts: ClassVar[bool] = True

    def meet(self, draw: Draw, op: LinearMap, x: Tensor, w: str, b: Any, noise: Noise) -> Tensor:
        """The family's own local form."""
        return draw.local(op, x, w, b, noise)


estimators.register("local")(Local())
