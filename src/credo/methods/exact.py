"""Exact Bayesian linear regression, for networks linear in their random parameters.

With f(x, w) = f0(x) + J(x) w, noise variance s^2 and prior N(m0, V0): precision P = V0^-1 + J^T J / s^2 and mean
P^-1 (V0^-1 m0 + J^T (y - f0) / s^2). Where the noise is unknown, w given s^2 ~ N(m0, s^2 V0) and s^2 ~ InverseGamma(a, b) keep
the posterior in closed form; the prior's variances are then in units of the noise. A last layer on fixed features is
linear (``random="last"``); anything else is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Normal

from credo.core.errors import NetworkError, SettingError
from credo.core.seeds import generator
from credo.core.settings import setting
from credo.engine.job import Fitted, Job
from credo.engine.method import Method, methods
from credo.engine.model import Model
from credo.engine.outputs import sampled_outputs
from credo.likelihoods import Gaussian
from credo.posteriors import Delta, Factorised, Full, NormalInverseGamma, Params, Posterior, PosteriorPrior
from credo.posteriors.family import Layout


class Prior(NamedTuple):
    """Gaussian prior over the flat vector, and the inverse-gamma's shape and rate."""

    mean: Tensor
    precision: Tensor
    shape: float
    rate: float


class Sums(NamedTuple):
    """J^T J, J^T r, r^T r over the data, r = y - f0, each output scaled by its noise, and the number of scalar observations."""

    gram: Tensor
    cross: Tensor
    square: float
    count: int


@methods.register("exact")
@dataclass(frozen=True)
class Exact(Method):
    """The conjugate posterior in closed form."""

    name: ClassVar[str] = "exact"
    summary: ClassVar[str] = "Exact posterior of a network that is linear in its random parameters."
    reference: ClassVar[str] = "Bishop 2006, Pattern recognition and machine learning, sections 3.3 and 3.5."
    epochs: ClassVar[int] = 1
    small: ClassVar[dict[str, Any]] = {}
    exceptions: ClassVar[dict[str, str]] = {
        "networks": "only networks linear in their random parameters have this posterior",
        "classification": "only a Gaussian likelihood is conjugate",
        "resume": "one pass over the data leaves nothing to resume",
    }

    noise: str = setting(
        "auto",
        "Observation noise: 'known' (the likelihood's std), 'unknown', or 'auto': unknown where the likelihood learns it.",
        choices=("auto", "known", "unknown"),
    )
    prior_shape: float = setting(0.01, "Shape a of the inverse-gamma prior of an unknown noise variance.", gt=0.0)
    prior_rate: float = setting(0.01, "Rate b of that prior.", gt=0.0)

    def fit(self, model: Model, job: Job) -> Fitted:
        """Sum J^T J over the data once, then solve."""
        likelihood = model.likelihood
        if not isinstance(likelihood, Gaussian):
            raise SettingError(f"exact needs a Gaussian likelihood, got {likelihood.name!r}; use method='vi' for others.")
        unknown = self.noise == "unknown" or (self.noise == "auto" and any(p.requires_grad for p in likelihood.parameters()))
        layout = Layout({n: s.shape for n, s in model.random.items()})
        prior = self._prior(model, layout, unknown)
        std = torch.ones((), dtype=torch.float64) if unknown else likelihood.std(torch.zeros(1, dtype=torch.float64)).detach()
        sums = _accumulate(model, job, layout, std)
        precision = prior.precision + sums.gram
        factor = torch.linalg.cholesky(precision)
        pulled = prior.precision @ prior.mean + sums.cross
        mean = torch.cholesky_solve(pulled.unsqueeze(-1), factor).squeeze(-1)
        tril = torch.linalg.cholesky(torch.cholesky_inverse(factor))
        misfit = sums.square + float(prior.mean @ prior.precision @ prior.mean) - float(mean @ precision @ mean)
        log_ratio = 0.5 * float(torch.linalg.slogdet(prior.precision).logabsdet) - float(factor.diagonal().log().sum())
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
            log_noise = float(std.log().expand(_width(job)).sum()) * job.source.num_data
            evidence = log_ratio - 0.5 * misfit - 0.5 * sums.count * math.log(2 * math.pi) - log_noise
        values = model.values()
        members = [family.to(model.device), *([Delta.start({n: values[n] for n in model.point})] if model.point else [])]
        if job.run is not None:
            job.run.history(-1)  # what a run killed right here may have left
        job.note({"epoch": 0, "elbo": evidence, "log_evidence": evidence})
        return Fitted(Posterior(members), model.buffers())

    def _prior(self, model: Model, layout: Layout, unknown: bool) -> Prior:
        if isinstance(model.prior, PosteriorPrior):
            for family in model.prior.posterior.members:
                if unknown and isinstance(family, NormalInverseGamma) and set(family.layout.shapes) == set(layout.shapes):
                    shape, rate = family.shape_rate.tolist()
                    return Prior(family.flat_mean.cpu(), torch.cholesky_inverse(family.scale_tril.cpu()), shape, rate)
                if not unknown and isinstance(family, Full) and set(family.names) == set(layout.shapes):
                    return Prior(
                        family.flat_mean.detach().double().cpu(),
                        torch.cholesky_inverse(family.scale_tril().detach().double().cpu()),
                        0.0,
                        0.0,
                    )
        factorised = Factorised(
            {n: model.prior.at(replace(s, device=torch.device("cpu"))) for n, s in model.random.items()}, layout.shapes
        )
        means, variances = [], []
        for name, shape in layout.shapes.items():
            distribution = factorised.distributions[name]
            if type(distribution) is not Normal:
                raise SettingError(f"exact needs a normal prior, but {name!r} has {distribution}.")
            means.append(distribution.loc.double().expand(shape).reshape(-1))
            variances.append(distribution.scale.double().square().expand(shape).reshape(-1))
        return Prior(torch.cat(means), torch.diag(1.0 / torch.cat(variances)), self.prior_shape, self.prior_rate)


def _width(job: Job) -> int:
    targets = job.source.targets()
    return 1 if targets.dim() == 1 else targets.shape[1]


def _accumulate(model: Model, job: Job, layout: Layout, std: Tensor) -> Sums:
    """One pass over the data in double precision; refuses a network that is not linear in the random parameters."""
    numel = layout.numel
    gram, cross = torch.zeros(numel, numel, dtype=torch.float64), torch.zeros(numel, dtype=torch.float64)
    square, count, seen = 0.0, 0, 0
    design = _design(model, layout)
    for x, y in job.source(None, job.batch_size):
        base, jacobian = design(x)
        target = model.likelihood.check_pair(base, y).double().cpu()
        residual = ((target - base) / std).reshape(-1)
        columns = (jacobian / std).reshape(numel, -1)
        gram += columns @ columns.T
        cross += columns @ residual
        square += float(residual @ residual)
        count += residual.numel()
        seen += len(y)
    if seen != job.source.num_data:
        raise SettingError(f"exact saw {seen} examples in one pass, but num_data is {job.source.num_data}; it needs all of them.")
    return Sums(gram, cross, square, count)


def _design(model: Model, layout: Layout) -> Callable[[Any], tuple[Tensor, Tensor]]:
    """x -> (f0 (N, D), J (P, N, D)), by running the network at zero and at each unit vector."""
    values, buffers = model.values(), model.buffers()
    probe = torch.randn(layout.numel, generator=generator("linearity"), dtype=torch.float64)
    points = torch.cat(
        [torch.zeros(1, layout.numel, dtype=torch.float64), torch.eye(layout.numel, dtype=torch.float64), probe.unsqueeze(0)]
    )

    def realise(numbers: Any) -> Params:
        rows = layout.split(points[list(numbers)].to(model.device))
        return rows | {n: values[n].expand(len(numbers), *values[n].shape) for n in model.point}

    def design(x: Any) -> tuple[Tensor, Tensor]:
        outputs, _ = sampled_outputs(model, realise, range(len(points)), x, buffers, 0)
        outputs = outputs.double().cpu()
        base, jacobian, check = outputs[0], outputs[1:-1] - outputs[0], outputs[-1]
        expected = base + torch.tensordot(probe, jacobian, dims=1)
        tolerance = 1e-3 if next(iter(model.random.values())).dtype != torch.float64 else 1e-8
        if not torch.allclose(check, expected, rtol=tolerance, atol=tolerance * float(expected.abs().max() + 1)):
            raise NetworkError(
                "The network is not linear in its random parameters, so its posterior is not Gaussian; "
                "make only the last layer random (random='last') or use method='vi'."
            )
        return base, jacobian

    return design
