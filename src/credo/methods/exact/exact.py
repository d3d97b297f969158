"""Exact Bayesian linear regression, for networks linear in their random parameters.

With f(x, w) = f0(x) + J(x) w, noise variance s^2 and prior N(m0, V0): precision P = V0^-1 + J^T J /
s^2 and mean P^-1 (V0^-1 m0 + J^T (y - f0) / s^2). Where the noise is unknown, w given s^2 ~ N(m0,
s^2 V0) and s^2 ~ InverseGamma(a, b) keep the posterior in closed form; the prior's variances are
then in units of the noise. A last layer on fixed features is linear (``random="last"``); anything
else is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from credo.core.settings import setting
from credo.core.sites import FlatLayout
from credo.engine.fit_job import FitJob, Problem
from credo.engine.linear_gaussian import gaussian_likelihood
from credo.engine.method import Method, methods
from credo.engine.model import Fitted, Model
from credo.methods.exact.parts.conjugate_regression import (
    known_noise,
    regression_prior,
    unknown_noise,
)


@methods.register("exact")
@dataclass(frozen=True)
class Exact(Method):
    """The conjugate posterior in closed form."""

    name: ClassVar[str] = "exact"
    summary: ClassVar[str] = "Exact posterior of a network that is linear in its random parameters."
    reference: ClassVar[str] = (
        "Bishop 2006, Pattern recognition and machine learning, sections 3.3 and 3.5."
    )
    target: ClassVar[str] = "exact"
    fidelity: ClassVar[str] = "exact"
    fixed_length: ClassVar[bool] = True
    teachable: ClassVar[bool] = False
    conformance_settings: ClassVar[dict[str, Any]] = {}
    exceptions: ClassVar[dict[str, str]] = {
        "networks": "only networks linear in their random parameters have this posterior",
        "classification": "only a Gaussian likelihood is conjugate",
        "resume": "one pass over the data leaves nothing to resume",
    }

    noise: str = setting(
        "auto",
        "Observation noise: 'known' (the likelihood's std), 'unknown', or 'auto': unknown where "
        "the likelihood learns it.",
        choices=("auto", "known", "unknown"),
    )
    prior_shape: float = setting(
        0.01, "Shape a of the inverse-gamma prior of an unknown noise variance.", gt=0.0
    )
    prior_rate: float = setting(
        0.01, "Rate b of the inverse-gamma prior of an unknown noise variance.", gt=0.0
    )

    def usual_steps(self, problem: Problem, batch_size: int | None) -> int:
        """One pass over the data."""
        return 1

    def fit(self, model: Model, fit_job: FitJob) -> Fitted:
        """Sum J^T J over the data once, then solve."""
        likelihood = gaussian_likelihood(model, "exact")
        learned = any(p.requires_grad for p in likelihood.parameters())
        unknown = self.noise == "unknown" or (self.noise == "auto" and learned)
        layout = FlatLayout({n: s.shape for n, s in model.random.items()})
        prior = regression_prior(model, layout, unknown, self.prior_shape, self.prior_rate)
        regress = unknown_noise if unknown else known_noise
        family, evidence = regress(model, fit_job, layout, prior)
        posterior = model.with_points([family.to(model.device)], model.values())
        if fit_job.run is not None:
            fit_job.run.history(-1)  # what a run killed right here may have left
        fit_job.note({"epoch": 0, "elbo": evidence, "log_evidence": evidence})
        return Fitted(posterior, model.buffers())
