"""What methods that train several networks share: how many start where, the optimizer, and the
loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from credo.core.settings import setting
from credo.engine.batches import on_device
from credo.engine.fit_job import FitJob, Fitted
from credo.engine.method import Method
from credo.engine.model import Model
from credo.engine.training_loop import DescentSettings, train
from credo.methods.ensembles.parts.members import Flock, Trace, member_seeds
from credo.methods.ensembles.parts.members_step import moving, reaches
from credo.methods.ensembles.parts.threaded_members import stepping


@dataclass(frozen=True)
class EnsembleMethod(Method, DescentSettings):
    """Members that learn at once."""

    init: Any = setting(
        "random",
        "Start: 'random' (each member its own), 'pretrained' (all at the network's values), or a "
        "state dict.",
        kind=(str, Mapping),
        choices=("pretrained", "random"),
    )
    optimizer: str = setting("adam", "What moves the members.", choices=("adam", "sgd"))
    momentum: float = setting(0.9, "Of SGD.", ge=0.0, le=0.999)
    vectorise: Any = setting(
        None,
        "Run all members in one vmapped pass; by default unless the network has convolutions, "
        "which are slower so.",
        kind=bool,
    )

    def flock(
        self, model: Model, fit_job: FitJob, members: int, trace: Trace | None = None
    ) -> Flock:
        """Members with their own seeds; the first has the fit's."""
        seeds = member_seeds(fit_job.seed, members)
        return Flock(
            model,
            [model.start_values(self.init, seed) for seed in seeds],
            seeds,
            trace,
            self.vectorise,
        )

    def train(
        self,
        flock: Flock,
        fit_job: FitJob,
        decay: Callable[[float], float],
        adversarial: float = 0.0,
    ) -> Fitted:
        """The members' descent."""
        reach = (
            reaches(on_device(fit_job.source, flock.model), adversarial) if adversarial else None
        )
        reach = flock.model.move(reach)
        return train(
            flock,
            fit_job,
            moving(self.optimizer, self.momentum),
            stepping(reach),
            decay=decay,
            compile=self.compile,
        )
