"""MultiSWAG: a SWAG Gaussian around each of several modes, q(w) = 1/K sum_k q_k(w).

An ensemble finds different modes and SWAG adds the spread around each. All members train at once.
What is said of ``swag`` holds for every one of them; their weights are equal, whatever the mass of
their modes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from credo.core.settings import setting
from credo.engine.fit_job import FitJob, Fitted
from credo.engine.method import methods
from credo.engine.model import Model
from credo.methods.ensembles.parts.swag_fit import PathMethod


@methods.register("multiswag")
@dataclass(frozen=True)
class MultiSWAG(PathMethod):
    """Gaussians along several paths."""

    name: ClassVar[str] = "multiswag"
    summary: ClassVar[str] = (
        "MultiSWAG: a mixture of SWAG Gaussians from several starts, trained at once."
    )
    reference: ClassVar[str] = (
        "Wilson and Izmailov 2020, Bayesian deep learning and a probabilistic perspective of "
        "generalization."
    )
    conformance_settings: ClassVar[dict[str, Any]] = PathMethod.conformance_settings | {
        "members": 2
    }

    members: int = setting(5, "Paths.", ge=1)

    def fit(self, model: Model, fit_job: FitJob) -> Fitted:
        """Follow all paths at once."""
        return self.gather(model, fit_job, self.members)
