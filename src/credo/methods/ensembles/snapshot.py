"""Snapshot ensembles: one training run whose learning rate falls and restarts, with a copy of the
weights at every low point.

lr(t) = lr / 2 (1 + cos(pi frac(M t / T))) for M cycles in T epochs. The copies are equally likely
members of an ensemble for the price of one training run; predictions are the plain average of their
distributions. Statistics of batch normalisation are computed anew for each. Cycles too short to
leave a mode give copies that agree too much.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from credo.core.errors import CredoError, SettingError
from credo.core.settings import setting
from credo.engine.batchnorm import norms, statistics
from credo.engine.fit_job import FitJob, Fitted
from credo.engine.method import methods
from credo.engine.model import Model
from credo.engine.schedules import fall
from credo.methods.ensembles.parts.members import several
from credo.methods.ensembles.parts.members_fit import EnsembleMethod
from credo.methods.ensembles.parts.paths import Snapshots


@methods.register("snapshot")
@dataclass(frozen=True)
class Snapshot(EnsembleMethod):
    """Copies from the ends of learning-rate cycles."""

    name: ClassVar[str] = "snapshot"
    summary: ClassVar[str] = (
        "Snapshot ensemble: copies of the weights at the low points of a cyclical learning rate."
    )
    reference: ClassVar[str] = "Huang et al. 2017, Snapshot ensembles: train 1, get M for free."
    tolerance: ClassVar[float] = 0.05
    conformance_settings: ClassVar[dict[str, Any]] = {
        "epochs": 600,
        "batch_size": None,
        "lr": 0.1,
        "cycles": 3,
    }
    exceptions: ClassVar[dict[str, str]] = {
        "conjugate_covariance": "on a problem with one mode all copies end at it: their spread is "
        "that of modes"
    }

    cycles: int = setting(5, "Cycles of the learning rate, each giving one member.", ge=1)
    lr_schedule: str = setting("cosine", "Within a cycle.", choices=("cosine",))

    def fit(self, model: Model, fit_job: FitJob) -> Fitted:
        """Descend on the negative log joint, again and again from where it is."""
        if self.cycles > fit_job.epochs:
            raise SettingError(
                f"cycles={self.cycles} do not fit into epochs={fit_job.epochs}; a cycle takes at "
                "least one epoch."
            )
        trace = Snapshots(self.cycles)
        flock = self.flock(model, fit_job, 1, trace)
        # whole numbers: a quotient just below the start of a cycle would be its end
        last = self.train(
            flock,
            fit_job,
            lambda progress: fall(
                round(progress * fit_job.epochs) * self.cycles % fit_job.epochs / fit_job.epochs
            ),
        )
        count = int(trace.seen)
        if not count:
            raise CredoError(
                "A callback stopped snapshot before the end of the first cycle; nothing was kept."
            )
        values, voices = trace.found(flock)
        draws = ({n: v[i] for n, v in values.items()} for i in range(count))
        buffers = statistics(model, fit_job, draws) if norms(model.net) else {}
        return Fitted(several(model, values, voices, buffers), last.buffers)
