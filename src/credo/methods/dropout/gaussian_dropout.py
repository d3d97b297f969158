"""Gaussian dropout: every input unit of a layer is multiplied by N(1, alpha) with alpha = p / (1 -
p).

The first two moments are those of dropout at rate p, and so is the penalty under a normal prior,
l^2 (1 + alpha) / (2 N) norm(W)^2; what is beyond (a unit is never switched off) differs. Smooth
noise has smooth gradients; its size is chosen, not inferred.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from credo.engine.method import methods
from credo.engine.noise_places import DropoutMethod
from credo.posteriors import GaussianDropout, Places


@methods.register("gaussian_dropout")
@dataclass(frozen=True)
class GaussianDropoutMethod(DropoutMethod):
    """Gaussian factors of fixed size."""

    name: ClassVar[str] = "gaussian_dropout"
    summary: ClassVar[str] = "Gaussian dropout: units multiplied by N(1, p / (1 - p))."
    reference: ClassVar[str] = (
        "Srivastava et al. 2014, Dropout; Wang and Manning 2013, Fast dropout training."
    )
    target: ClassVar[str] = "gaussian_dropout"
    tolerance: ClassVar[float] = 0.05
    conformance_settings: ClassVar[dict[str, Any]] = {
        "epochs": 600,
        "batch_size": None,
        "lr": 0.02,
        "train_samples": 8,
    }

    def make_family(self, values: Any, places: Places, rates: dict[str, float]) -> GaussianDropout:
        """Factors of fixed variance."""
        return GaussianDropout.start(values, places, rates, noise="input", per="layer", learn=False)
