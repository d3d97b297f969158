"""Deep ensembles: networks trained apart from different starts, averaged as equally likely.

Every member is a MAP fit, q(w) = 1/K sum_k delta(w - w_k), and predictions average the members'
distributions (not their logits). All members train at once. With ``adversarial`` eps, half of the
data term is taken at x + eps * range(x) * sign(d nll / dx), which makes predictions smooth around
the data; noise that depends on x comes with the heteroscedastic likelihood. Members find different
modes but have no spread around them, and their number says how many modes are seen at most.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from credo.core.settings import setting
from credo.engine.fit_job import FitJob, Fitted
from credo.engine.method import methods
from credo.engine.model import Model
from credo.engine.schedules import decays
from credo.methods.ensembles.parts.members_fit import EnsembleMethod


@methods.register("deep_ensemble")
@dataclass(frozen=True)
class DeepEnsemble(EnsembleMethod):
    """MAP fits from several starts, all at once."""

    name: ClassVar[str] = "deep_ensemble"
    summary: ClassVar[str] = (
        "Deep ensemble: several networks from different starts, trained at once."
    )
    reference: ClassVar[str] = (
        "Lakshminarayanan, Pritzel and Blundell 2017, Simple and scalable predictive uncertainty "
        "estimation using deep ensembles."
    )
    tolerance: ClassVar[float] = 0.01
    conformance_settings: ClassVar[dict[str, Any]] = {
        "epochs": 500,
        "batch_size": None,
        "lr": 0.1,
        "members": 3,
    }
    exceptions: ClassVar[dict[str, str]] = {
        "conjugate_covariance": "on a problem with one mode all members end at it: their spread "
        "is that of modes"
    }

    members: int = setting(5, "Networks.", ge=1)
    adversarial: float = setting(
        0.0,
        "Reach of adversarial neighbours as a share of each input's range; 0 trains on the data "
        "alone.",
        ge=0.0,
    )

    def fit(self, model: Model, fit_job: FitJob) -> Fitted:
        """Descend on all members' negative log joints."""
        return self.train(
            self.flock(model, fit_job, self.members),
            fit_job,
            decays[self.lr_schedule],
            self.adversarial,
        )
