"""Bayesian linear regression in closed form, for networks linear in their random parameters.

With f(x, w) = f0(x) + J(x) w, noise variance s^2 and prior N(m0, V0): precision P = V0^-1 + J^T J /
s^2 and mean P^-1 (V0^-1 m0 + J^T (y - f0) / s^2). Everything in double precision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Normal

from credo.core.errors import CredoError, NetworkError, SettingError
from credo.core.seeds import generator
from credo.core.sites import FlatLayout
from credo.engine.fit_job import FitJob
from credo.engine.model import Model
from credo.engine.outputs import Draws, sampled_outputs
from credo.likelihoods import Gaussian
from credo.posteriors import Params


class Sums(NamedTuple):
    """J^T J, J^T r, r^T r over the data, r = y - f0, each output scaled by its noise, and the
    number of scalar observations.
    """

    gram: Tensor
    cross: Tensor
    square: float
    count: int


class Solution(NamedTuple):
    """Mean, Cholesky factor of the covariance, precision, and Cholesky factor of the precision."""

    mean: Tensor
    tril: Tensor
    precision: Tensor
    factor: Tensor


def normal_prior(model: Model, layout: FlatLayout) -> tuple[Tensor, Tensor]:
    """Mean and variance of the random parameters as flat vectors; refused unless every one is
    normal.
    """
    means, variances = [], []
    for name, shape in layout.shapes.items():
        distribution = model.prior.at(replace(model.random[name], device=torch.device("cpu")))
        if type(distribution) is not Normal:
            raise SettingError(
                f"The closed form needs a normal prior, but {name!r} has {distribution}."
            )
        means.append(distribution.loc.detach().double().cpu().expand(shape).reshape(-1))
        variances.append(
            distribution.scale.detach().double().cpu().square().expand(shape).reshape(-1)
        )
    return torch.cat(means), torch.cat(variances)


def conjugate(model: Model) -> bool:
    """Whether likelihood and prior are Gaussian, so that a network linear in its random parameters
    has a Gaussian posterior.
    """
    if model.likelihood.as_gaussian() is None:
        return False
    try:
        return all(type(model.prior.at(site)) is Normal for site in model.random.values())
    except CredoError:
        return False


def gaussian_likelihood(model: Model, method: str) -> Gaussian:
    """The model's likelihood, refused unless it is Gaussian with one deviation for all inputs."""
    gaussian = model.likelihood.as_gaussian()
    if gaussian is None:
        raise SettingError(
            f"{method} needs a Gaussian likelihood, got {model.likelihood.name!r}; use "
            "method='vi' for others."
        )
    return gaussian


def noise_std(model: Model) -> Tensor:
    """The observation noise as it stands, one number or one per output."""
    likelihood = gaussian_likelihood(model, "The closed form")
    return likelihood.std(torch.zeros(1, dtype=torch.float64)).detach().cpu()


def regression(
    model: Model, fit_job: FitJob, values: Params, buffers: Mapping[str, Tensor], layout: FlatLayout
) -> Solution:
    """The posterior of the random parameters given everything else at ``values`` and the noise as
    it stands.
    """
    mean, var = normal_prior(model, layout)
    sums = accumulate(model, fit_job, layout, noise_std(model), values, buffers)
    return solve(mean, torch.diag(1.0 / var), sums)


def solve(mean: Tensor, precision: Tensor, sums: Sums) -> Solution:
    """Combine a Gaussian prior with what the data say."""
    total = precision + sums.gram
    factor = torch.linalg.cholesky(total)
    centre = torch.cholesky_solve((precision @ mean + sums.cross).unsqueeze(-1), factor).squeeze(-1)
    return Solution(centre, torch.linalg.cholesky(torch.cholesky_inverse(factor)), total, factor)


def accumulate(
    model: Model,
    fit_job: FitJob,
    layout: FlatLayout,
    std: Tensor,
    values: Params,
    buffers: Mapping[str, Tensor],
) -> Sums:
    """One pass over the data in double precision; refuses a network that is not linear in the
    random parameters.
    """
    numel = layout.numel
    gram, cross = (
        torch.zeros(numel, numel, dtype=torch.float64),
        torch.zeros(numel, dtype=torch.float64),
    )
    square, count, seen = 0.0, 0, 0
    design = _design(model, layout, values, buffers)
    for x, y in fit_job.source(None, fit_job.batch_size):
        base, jacobian = design(x)
        target = model.likelihood.check_pair(base, y).double().cpu()
        residual = ((target - base) / std).reshape(-1)
        columns = (jacobian / std).reshape(numel, -1)
        gram += columns @ columns.T
        cross += columns @ residual
        square += float(residual @ residual)
        count += residual.numel()
        seen += len(y)
    if seen != fit_job.source.num_data:
        raise SettingError(
            f"The closed form saw {seen} examples in one pass, but num_data is "
            f"{fit_job.source.num_data}; it needs all of them."
        )
    return Sums(gram, cross, square, count)


def _design(
    model: Model, layout: FlatLayout, values: Params, buffers: Mapping[str, Tensor]
) -> Callable[[Any], tuple[Tensor, Tensor]]:
    """x -> (f0 (N, D), J (P, N, D)), by running the network at zero and at each unit vector."""
    probe = torch.randn(layout.numel, generator=generator("linearity"), dtype=torch.float64)
    points = torch.cat(
        [
            torch.zeros(1, layout.numel, dtype=torch.float64),
            torch.eye(layout.numel, dtype=torch.float64),
            probe.unsqueeze(0),
        ]
    )

    def realise(numbers: Any) -> Params:
        rows = layout.split(points[list(numbers)].to(model.device))
        return rows | {n: values[n].expand(len(numbers), *values[n].shape) for n in model.point}

    def design(x: Any) -> tuple[Tensor, Tensor]:
        outputs, _ = sampled_outputs(
            model, Draws(range(len(points)), realise, frozenset(model.point)), x, buffers, 0
        )
        outputs = outputs.double().cpu()
        base, jacobian, check = outputs[0], outputs[1:-1] - outputs[0], outputs[-1]
        expected = base + torch.tensordot(probe, jacobian, dims=1)
        tolerance = 1e-3 if next(iter(model.random.values())).dtype != torch.float64 else 1e-8
        if not torch.allclose(
            check, expected, rtol=tolerance, atol=tolerance * float(expected.abs().max() + 1)
        ):
            raise NetworkError(
                "The network is not linear in its random parameters, so its posterior is not "
                "Gaussian; "
                "make only the last layer random (random='last') or use method='vi'."
            )
        return base, jacobian

    return design
