"""Draw the weights, then run the network: works with everything, the default for prediction."""

from __future__ import annotations

from typing import ClassVar

from credo.estimators.base import Estimator, estimators


class Weights(Estimator):
    """One draw of all weights per pass: unbiased, but every example of a batch shares it, so
    gradients vary most.
    """

    name: ClassVar[str] = "weights"
    pathwise: ClassVar[bool] = True


estimators.register("weights")(Weights())
