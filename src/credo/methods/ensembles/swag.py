"""SWAG: a Gaussian with the mean and covariance of the weights that SGD passes at a constant
learning rate.

Near a mode the path of SGD wanders with the noise of its batches, in about the directions in which
the loss is flat. Its mean is stochastic weight averaging, plain or exponential; half of its
variance is kept per weight and half in the last ``rank`` deviations. How far it wanders depends on
the learning rate and the batch size, not only on the posterior; with all data in one batch there is
no spread at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from credo.core.settings import setting
from credo.engine.fit_job import FitJob, Fitted
from credo.engine.method import methods
from credo.engine.model import Model
from credo.methods.ensembles.parts.swag_fit import PathMethod


@methods.register("swag")
@dataclass(frozen=True)
class SWAG(PathMethod):
    """One Gaussian along one path."""

    name: ClassVar[str] = "swag"
    summary: ClassVar[str] = "SWAG: a low-rank Gaussian fitted to the path of SGD."
    reference: ClassVar[str] = (
        "Maddox et al. 2019, A simple baseline for Bayesian uncertainty in deep learning."
    )

    init: Any = setting(
        "pretrained",
        "Start: 'pretrained' (the network's values), 'random', or a state dict.",
        kind=(str, Mapping),
        choices=("pretrained", "random"),
    )

    def fit(self, model: Model, fit_job: FitJob) -> Fitted:
        """Follow one path."""
        return self.gather(model, fit_job, 1)
