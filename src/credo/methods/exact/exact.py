"""Exact Bayesian linear regression, for networks linear in their random parameters.

With f(x, w) = f0(x) + J(x) w, noise variance s^2 and prior N(m0, V0): precision P = V0^-1 + J^T J /
s^2 and mean P^-1 (V0^-1 m0 + J^T (y - f0) / s^2). Where the noise is unknown, w given s^2 ~ N(m0,
s^2 V0) and s^2 ~ InverseGamma(a, b) keep the posterior in closed form; the prior's variances are
then in units of the noise. A last layer on fixed features is linear (``random="last"``); anything
else is refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from credo.core.errors import SettingError
from credo.core.flat_layout import FlatLayout
from credo.core.settings import setting
from credo.engine.fit_job import FitJob, Fitted
from credo.engine.linear_gaussian import accumulate, noise_std, normal_prior, solve
from credo.engine.method import Method, methods
from credo.engine.model import Model
from credo.likelihoods import Gaussian
from credo.posteriors import Delta, Full, NormalInverseGamma, Posterior, PosteriorPrior


class Prior(NamedTuple):
    """Gaussian prior over the flat vector, and the inverse-gamma's shape and rate."""

    mean: Tensor
    precision: Tensor
    shape: float
    rate: float


@methods.register("exact")
@dataclass(frozen=True)
class Exact(Method):
    """The conjugate posterior in closed form."""

    name: ClassVar[str] = "exact"
    summary: ClassVar[str] = "Exact posterior of a network that is linear in its random parameters."
    reference: ClassVar[str] = (
        "Bishop 2006, Pattern recognition and machine learning, sections 3.3 and 3.5."
    )
    epochs: ClassVar[int] = 1
    fidelity: ClassVar[str] = "exact"
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
    prior_rate: float = setting(0.01, "Rate b of that prior.", gt=0.0)

    def fit(self, model: Model, fit_job: FitJob) -> Fitted:
        """Sum J^T J over the data once, then solve."""
        likelihood = model.likelihood
        if not isinstance(likelihood, Gaussian):
            raise SettingError(
                f"exact needs a Gaussian likelihood, got {likelihood.name!r}; use method='vi' for "
                "others."
            )
        if model.prior.parts():
            raise SettingError(
                f"exact needs a fixed prior; {model.prior.describe()!r} is learned: use "
                "method='vi' for it."
            )
        unknown = self.noise == "unknown" or (
            self.noise == "auto" and any(p.requires_grad for p in likelihood.parameters())
        )
        layout = FlatLayout({n: s.shape for n, s in model.random.items()})
        prior = self._prior(model, layout, unknown)
        std = torch.ones((), dtype=torch.float64) if unknown else noise_std(model)
        sums = accumulate(model, fit_job, layout, std, model.values(), model.buffers())
        mean, tril, precision, factor = solve(prior.mean, prior.precision, sums)
        misfit = (
            sums.square
            + float(prior.mean @ prior.precision @ prior.mean)
            - float(mean @ precision @ mean)
        )
        log_ratio = 0.5 * float(torch.linalg.slogdet(prior.precision).logabsdet) - float(
            factor.diagonal().log().sum()
        )
        shapes = layout.shapes
        if unknown:
            shape, rate = prior.shape + 0.5 * sums.count, prior.rate + 0.5 * misfit
            family = NormalInverseGamma(shapes).set(mean, tril, shape, rate)
            evidence = (
                log_ratio
                + prior.shape * math.log(prior.rate)
                - shape * math.log(rate)
                + math.lgamma(shape)
                - math.lgamma(prior.shape)
            )
            evidence -= 0.5 * sums.count * math.log(2 * math.pi)
        else:
            family = Full({n: tuple(s) for n, s in shapes.items()}, "float64").set(mean, tril)
            log_noise = float(std.log().expand(_width(fit_job)).sum()) * fit_job.source.num_data
            evidence = (
                log_ratio - 0.5 * misfit - 0.5 * sums.count * math.log(2 * math.pi) - log_noise
            )
        values = model.values()
        members = [
            family.to(model.device),
            *([Delta.start({n: values[n] for n in model.point})] if model.point else []),
        ]
        if fit_job.run is not None:
            fit_job.run.history(-1)  # what a run killed right here may have left
        fit_job.note({"epoch": 0, "elbo": evidence, "log_evidence": evidence})
        return Fitted(Posterior(members), model.buffers())

    def _prior(self, model: Model, layout: FlatLayout, unknown: bool) -> Prior:
        if isinstance(model.prior, PosteriorPrior):
            for family in model.prior.posterior.members:
                if (
                    unknown
                    and isinstance(family, NormalInverseGamma)
                    and set(family.layout.shapes) == set(layout.shapes)
                ):
                    shape, rate = family.shape_rate.tolist()
                    return Prior(
                        family.flat_mean.cpu(),
                        torch.cholesky_inverse(family.scale_tril.cpu()),
                        shape,
                        rate,
                    )
                if (
                    not unknown
                    and isinstance(family, Full)
                    and set(family.names) == set(layout.shapes)
                ):
                    return Prior(
                        family.flat_mean.detach().double().cpu(),
                        torch.cholesky_inverse(family.scale_tril().detach().double().cpu()),
                        0.0,
                        0.0,
                    )
        mean, var = normal_prior(model, layout)
        return Prior(mean, torch.diag(1.0 / var), self.prior_shape, self.prior_rate)


def _width(fit_job: FitJob) -> int:
    targets = fit_job.source.targets()
    return 1 if targets.dim() == 1 else targets.shape[1]
