"""Snapshot ensembles: one training run whose learning rate falls and restarts, with a copy of the
weights at every low point.

lr(t) = lr / 2 (1 + cos(pi frac(M t / T))) for M cycles in T epochs. The copies are equally likely
members of an ensemble for the price of one training run; predictions are the plain average of their
distributions. Statistics of batch normalisation are computed anew for each. Cycles too short to
leave a mode give copies that agree too much.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from credo.core.errors import SettingError
from credo.core.settings import setting
from credo.engine.batchnorm import norms, statistics
from credo.engine.fit_job import FitJob
from credo.engine.method import Method, methods
from credo.engine.model import Fitted, Model
from credo.engine.training_loop import DescentSettings, fall, train
from credo.methods.ensembles.parts.member_points import equal_points
from credo.methods.ensembles.parts.members_fit import MemberSettings, start_members, step_maker
from credo.methods.ensembles.parts.members_step import members_optimizer
from credo.methods.ensembles.parts.training_path import Snapshots


@methods.register("snapshot")
@dataclass(frozen=True)
class Snapshot(Method, MemberSettings, DescentSettings):
    """Copies from the ends of learning-rate cycles."""

    name: ClassVar[str] = "snapshot"
    summary: ClassVar[str] = (
        "Snapshot ensemble: copies of the weights at the low points of a cyclical learning rate."
    )
    reference: ClassVar[str] = "Huang et al. 2017, Snapshot ensembles: train 1, get M for free."
    tries: ClassVar[bool] = True
    fixed_length: ClassVar[bool] = True
    afterwards: ClassVar[str | None] = (
        "statistics of batch normalisation for every copy, where the network has any"
    )
    tolerance: ClassVar[float] = 0.05
    conformance_settings: ClassVar[dict[str, Any]] = {
        "epochs": 600,
        "batch_size": None,
        "lr": 0.1,
        "num_cycles": 3,
    }
    exceptions: ClassVar[dict[str, str]] = {
        "conjugate_covariance": "on a problem with one mode all copies end at it: their "
        "differences are those of modes"
    }

    num_cycles: int = setting(
        5, "Cycles of the learning rate, each giving one member.", ge=1, formerly="cycles"
    )
    lr_schedule: str = setting(
        "cosine", "Learning-rate schedule within a cycle.", choices=("cosine",)
    )

    def fit(self, model: Model, fit_job: FitJob) -> Fitted:
        """Descend on the negative log joint, again and again from where it is."""
        path = Snapshots(self.num_cycles)
        last = train(
            start_members(model, fit_job, 1, self.init, path),
            fit_job,
            members_optimizer(self.optimizer, self.momentum),
            step_maker(self.vectorise),
            decay=_restarting(self.num_cycles, fit_job.epochs),
            compile=self.compile,
        )
        values, likelihood_params = path.taken()
        buffers = {}
        if norms(model.net):
            count = int(path.seen)
            points = ({n: v[i] for n, v in values.items()} for i in range(count))
            buffers = statistics(model, fit_job, points)
        return Fitted(equal_points(model, values, likelihood_params, buffers), last.buffers)


def _restarting(cycles: int, epochs: int) -> Callable[[float], float]:
    """The factor of the learning rate by the progress of the fit."""
    if cycles > epochs:
        raise SettingError(
            f"num_cycles={cycles} do not fit into epochs={epochs}; a cycle takes at least one "
            "epoch."
        )
    # whole numbers: a quotient just below the start of a cycle would be its end
    return lambda progress: fall(round(progress * epochs) * cycles % epochs / epochs)
