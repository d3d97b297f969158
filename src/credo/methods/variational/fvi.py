"""Function-space variational inference: maximise E_q[log p(D given w)] - KL[q(f(X)), p(f(X))] over
measurement points X.

q is a Gaussian over weights, judged by the functions it makes; the prior is over functions, a
Gaussian process or what the network's own prior gives. Points outside the data make the posterior
go back to the prior there, which weight-space VI does not. Functions are linearised in the weights
for the KL, so the bound is approximate for networks; each step takes a Jacobian at all measurement
points, which limits it to small ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from credo.core.errors import SettingError
from credo.core.settings import setting
from credo.engine.fit_job import FitJob
from credo.engine.method import Method, methods
from credo.engine.model import Fitted, Model
from credo.engine.step import descend
from credo.engine.training_loop import DescentSettings, decays
from credo.estimators import estimators
from credo.methods.variational.parts.function_space import (
    FunctionElbo,
    FunctionPrior,
    GaussianProcessPrior,
    Measurement,
    NetworkPrior,
)
from credo.posteriors import Start


@methods.register("fvi")
@dataclass(frozen=True)
class FVI(Method, DescentSettings):
    """A Gaussian over weights by the divergence of its functions."""

    name: ClassVar[str] = "fvi"
    summary: ClassVar[str] = (
        "Function-space variational inference: the prior is over functions, such as a Gaussian "
        "process."
    )
    reference: ClassVar[str] = (
        "Sun et al. 2019, Functional variational BNNs; Rudner et al. 2022, Tractable "
        "function-space VI."
    )
    lr: ClassVar[float | None] = 1e-2
    target: ClassVar[str] = "mean_field"
    tolerance: ClassVar[float] = 0.1
    conformance_settings: ClassVar[dict[str, Any]] = {"epochs": 600, "batch_size": None, "lr": 0.02}
    exceptions: ClassVar[dict[str, str]] = {}

    function_prior: str = setting(
        "network",
        "Prior over functions: that of the network's own prior, or a Gaussian process.",
        choices=("network", "gp"),
    )
    length_scale: float = setting(
        1.0, "Distance of inputs over which the Gaussian process varies.", gt=0.0
    )
    output_scale: float = setting(1.0, "Standard deviation of the Gaussian process.", gt=0.0)
    num_points: int = setting(
        16, "Inputs of the batch at which functions are compared.", ge=1, formerly="points"
    )
    num_outside: int | None = setting(
        None,
        "Further points, drawn from a box around the inputs; None for 16 where inputs are one "
        "float tensor.",
        ge=0,
        kind=int,
        formerly="outside",
    )
    margin: float = setting(
        0.5, "How far the box goes beyond the inputs on each side, in units of their range.", ge=0.0
    )
    posterior: str = setting(
        "mean_field", "Posterior family.", choices=("mean_field", "low_rank", "full")
    )
    estimator: str = setting(
        "local", "How noise enters training.", choices=("local", "weights", "flipout")
    )
    init_std: float = setting(0.01, "Initial standard deviation of every weight.", gt=0.0)
    rank: int = setting(4, "Factors of the low-rank family.", ge=1)
    train_samples: int = setting(1, "Draws per step, over which the objective is averaged.", ge=1)
    beta: float = setting(1.0, "Weight of the KL.", gt=0.0)

    def fit(self, model: Model, fit_job: FitJob) -> Fitted:
        """Descend on the negative bound."""
        if self.compile:
            raise SettingError(
                f"fvi: compile={self.compile!r} is not supported: a step differentiates "
                "derivatives; use compile=False."
            )
        if model.prior.parts():
            raise SettingError(
                f"fvi needs a fixed prior; {model.prior.describe()!r} is learned: use method='vi' "
                "for it."
            )
        prior: FunctionPrior = NetworkPrior()
        if self.function_prior == "gp":
            prior = GaussianProcessPrior(self.length_scale, self.output_scale)
        values = model.start_values(self.init, fit_job.seed)
        start = Start(self.init_std, rank=self.rank, seed=fit_job.seed)
        posterior, estimator = model.posterior(self.posterior, values, start), self.estimator
        measurement = Measurement(
            fit_job.source, self.num_points, self.num_outside, self.margin, model.device
        )
        elbo = FunctionElbo(
            model, posterior, estimators[estimator], self.train_samples, prior, measurement
        )
        return descend(elbo, fit_job, beta=self.beta, decay=decays[self.lr_schedule])
