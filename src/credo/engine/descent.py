"""What methods that descend on an objective share: where they start, how the learning rate falls,
how the step runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from credo.core.settings import setting
from credo.engine.elbo import Elbo
from credo.engine.fit_job import FitJob, Fitted
from credo.engine.initial_posterior import initial_values
from credo.engine.method import Method
from credo.engine.model import Model
from credo.engine.schedules import decays
from credo.engine.training_loop import descend


@dataclass(frozen=True)
class DescentSettings:
    """Where a descent starts, how its learning rate falls, how its step runs. A method mixes them
    in.
    """

    init: Any = setting(
        "pretrained",
        "Start: 'pretrained' (the network's values), 'random', or a state dict.",
        kind=(str, Mapping),
        choices=("pretrained", "random"),
    )
    lr_schedule: str = setting(
        "cosine", "Learning-rate schedule.", choices=("constant", "cosine", "linear")
    )
    compile: Any = setting(
        False,
        "Compile the step (True), on a GPU also as one CUDA graph; or capture that graph without "
        "compiling ('graph'), which starts sooner.",
        kind=(bool, str),
        choices=("graph",),
    )


@dataclass(frozen=True)
class GradientMethod(Method, DescentSettings):
    """A method whose ``fit`` is a descent with Adam."""

    def start(self, model: Model, fit_job: FitJob) -> dict[str, Tensor]:
        """The values to start from."""
        return initial_values(model, self.init, fit_job.seed)

    def descend(self, elbo: Elbo, fit_job: FitJob, **kl_weight: Any) -> Fitted:
        """Minimise the negative ELBO; ``kl_weight``: beta, schedule and warmup."""
        return descend(
            elbo, fit_job, decay=decays[self.lr_schedule], compile=self.compile, **kl_weight
        )
