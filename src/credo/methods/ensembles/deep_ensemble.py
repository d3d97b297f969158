"""Deep ensembles: networks trained independently from different starts, averaged as equally likely.

Every member is a MAP fit, q(w) = 1/K sum_k delta(w - w_k), and predictions average the members'
distributions (not their logits). All members train at once. With ``adversarial`` eps, half of the
data term is taken at x + eps * range(x) * sign(d nll / dx), which makes predictions smooth around
the data; noise that depends on x comes with the heteroscedastic likelihood. Members find different
modes but say nothing of the width of each, and their number says how many modes are seen at most.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from credo.core.settings import setting
from credo.engine.fit_job import FitJob
from credo.engine.method import Method, methods
from credo.engine.model import Fitted, Model
from credo.engine.training_loop import DescentSettings, decays, train
from credo.methods.ensembles.parts.adversarial import adversarial_steps
from credo.methods.ensembles.parts.members_fit import MemberSettings, start_members, step_maker
from credo.methods.ensembles.parts.members_step import members_optimizer


@methods.register("deep_ensemble")
@dataclass(frozen=True)
class DeepEnsemble(Method, MemberSettings, DescentSettings):
    """MAP fits from several starts, all at once."""

    name: ClassVar[str] = "deep_ensemble"
    summary: ClassVar[str] = (
        "Deep ensemble: several networks from different starts, trained at once."
    )
    reference: ClassVar[str] = (
        "Lakshminarayanan, Pritzel and Blundell 2017, Simple and scalable predictive uncertainty "
        "estimation using deep ensembles."
    )
    tries: ClassVar[bool] = True
    tolerance: ClassVar[float] = 0.01
    conformance_settings: ClassVar[dict[str, Any]] = {
        "epochs": 500,
        "batch_size": None,
        "lr": 0.1,
        "num_members": 3,
    }
    exceptions: ClassVar[dict[str, str]] = {
        "conjugate_covariance": "on a problem with one mode all members end at it: their "
        "differences are those of modes"
    }

    num_members: int = setting(5, "Networks in the ensemble.", ge=1, short="members")
    adversarial: float = setting(
        0.0,
        "Distance of adversarial neighbours as a share of each input's range; 0 trains on the data "
        "alone.",
        ge=0.0,
    )

    @property
    def copies(self) -> int:
        return self.num_members

    def for_trial(self) -> Self:
        """Two members tell how wide the prior of all should be; one is much surer of itself."""
        return replace(self, num_members=min(self.num_members, 2))

    def fit(self, model: Model, fit_job: FitJob) -> Fitted:
        """Descend on all members' negative log joints."""
        members = start_members(model, fit_job, self.num_members, self.init)
        steps = adversarial_steps(model, fit_job.source, self.adversarial)
        return train(
            members,
            fit_job,
            members_optimizer(self.optimizer, self.momentum),
            step_maker(self.vectorise, steps),
            decay=decays[self.lr_schedule],
            compile=self.compile,
        )
