"""The exact posterior of the network that this one becomes as all its hidden layers widen: a
Gaussian process.

Under weights N(0, sigma_w^2 / fan-in) and biases N(0, sigma_b^2) the function tends to a Gaussian
process with a kernel K of the depth, the activation (ReLU or erf) and those variances, all read
from the network and its prior; the widths no longer matter. With Gaussian noise s the posterior is
k(x)^T (K + s^2)^-1 y with variance K(x, x) - k(x)^T (K + s^2)^-1 k(x), the log evidence log N(y; 0,
K + s^2); learned noise is where that is largest. Not the posterior of the finite network, which
differs by about 1 / width and learns features, as the limit does not. Costs N^3 time and N^2
memory. Networks other than perceptrons (convolutions, too), priors whose variance does not fall as
1 / fan-in and other likelihoods are refused.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from credo.core.errors import DataError, SettingError
from credo.engine.fit_job import FitJob, Fitted
from credo.engine.linear_gaussian import noise_std
from credo.engine.method import Method, methods
from credo.engine.model import Model
from credo.likelihoods import Gaussian
from credo.methods.exact.parts.wide_limit import Limit, wide_limit
from credo.posteriors import Posterior, WideNetwork
from credo.posteriors.nngp import check_rows
from credo.posteriors.process import flattened
from credo.posteriors.wide_kernel import wide_kernel

LEAST = 1e-4  # of the targets' root mean square: the smallest noise that is tried
_GRID, _HALVINGS = 200, 50


@methods.register("nngp")
@dataclass(frozen=True)
class NNGP(Method):
    """Gaussian process regression with the kernel of the wide network."""

    name: ClassVar[str] = "nngp"
    summary: ClassVar[str] = (
        "Exact posterior of the infinitely wide limit of a perceptron (a Gaussian process)."
    )
    reference: ClassVar[str] = (
        "Neal 1996, Bayesian learning for neural networks; Williams 1997; Cho and Saul 2009; Lee "
        "et al. 2018, Deep neural networks as Gaussian "
        "processes; Matthews et al. 2018."
    )
    epochs: ClassVar[int] = 1
    batch_size: ClassVar[int | None] = None
    fidelity: ClassVar[str] = (
        "approximate"  # exact for the limit, which is another model than the network
    )
    teachable: ClassVar[bool] = False
    conformance_settings: ClassVar[dict[str, Any]] = {}
    exceptions: ClassVar[dict[str, str]] = {
        "networks": "only perceptrons have this limit in closed form",
        "classification": "only a Gaussian likelihood is conjugate",
        "resume": "one pass over the data leaves nothing to resume",
    }

    def fit(self, model: Model, fit_job: FitJob) -> Fitted:
        """Read the limit, look at all data once, and solve."""
        likelihood = model.likelihood
        if not isinstance(likelihood, Gaussian):
            raise SettingError(
                f"nngp needs a Gaussian likelihood, got {likelihood.name!r}; use method='vi' for "
                "others."
            )
        limit = wide_limit(model)
        check_rows(fit_job.source.num_data)
        x, y = _one_pass(model, fit_job, limit)
        if likelihood.log_std.requires_grad:
            kernel = wide_kernel(x, x, *limit[1:])
            with torch.no_grad():
                likelihood.log_std.copy_(
                    best_noise(kernel, y, likelihood.log_std.numel())
                    .log()
                    .reshape(likelihood.log_std.shape)
                )
        family = WideNetwork.condition(x, y, noise_std(model).reshape(-1).square(), *limit[1:])
        posterior, evidence = Posterior([family]), family.log_evidence(y)
        if fit_job.run is not None:
            fit_job.run.history(-1)  # what a run killed right here may have left
        row = {"epoch": 0, "elbo": evidence, "log_evidence": evidence}
        fit_job.note(
            row
            if fit_job.validate is None
            else row | {"validation_nll": fit_job.validate(posterior, model.buffers())}
        )
        return Fitted(posterior, model.buffers())


def _one_pass(model: Model, fit_job: FitJob, limit: Limit) -> tuple[Tensor, Tensor]:
    """All inputs ``(N, D)`` and targets ``(N, F)`` in double precision on the model's device."""
    rows = [
        (flattened(model.move(x)), model.move(model.likelihood.check_targets(y)))
        for x, y in fit_job.source(None, fit_job.batch_size)
    ]
    x, y = (torch.cat(part).double() for part in zip(*rows, strict=True))
    if len(y) != fit_job.source.num_data:
        raise SettingError(
            f"nngp saw {len(y)} examples in one pass, but num_data is {fit_job.source.num_data}; "
            "it needs all of them, once."
        )
    if x.shape[1] != limit.features:
        raise DataError(
            f"The first layer takes {limit.features} numbers, but an example has {x.shape[1]} "
            "(flattened)."
        )
    return x, y


def best_noise(kernel: Tensor, targets: Tensor, noises: int) -> Tensor:
    """The noise deviations ``(noises,)``, one for all outputs or one each, under which the evidence
    of ``targets`` ``(N, F)`` is largest.

    In the eigenbasis of K the negative log evidence is sum_i [e_i / (l_i + s^2) + m log(l_i + s^2)]
    / 2, with e the squared projections of the m outputs that share s. The best of a grid in log s,
    from 1e-4 to 2 times the targets' root mean square (no optimum is above it), is sharpened by
    halving the interval in which the slope changes its sign. Warns where the evidence still rises
    at the smallest.
    """
    values, vectors = torch.linalg.eigh(kernel)
    energy = (vectors.mT @ targets.double()).square().mT.reshape(noises, -1, len(kernel)).sum(1)
    shared, values = targets.shape[1] // noises, values.clamp_min(0.0)
    size = (energy.sum(-1) / (shared * len(kernel))).sqrt()
    grid = size.log().unsqueeze(1) + torch.linspace(
        math.log(LEAST), math.log(2.0), _GRID, dtype=size.dtype, device=size.device
    )

    def loss(log_std: Tensor) -> Tensor:
        var = values + (2.0 * log_std).exp().unsqueeze(-1)
        return ((energy.unsqueeze(1) / var) + shared * var.log()).sum(-1)

    def slope(log_std: Tensor) -> Tensor:
        var = values + (2.0 * log_std).exp().unsqueeze(-1)
        return (shared / var - energy / var.square()).sum(-1)

    best = loss(grid).argmin(1, keepdim=True)
    if bool((best == 0).any()):
        warnings.warn(
            f"The evidence still rises as the noise falls to {LEAST:g} of the targets' root mean "
            "square, and is left there: the targets look free of "
            "noise; state it with Gaussian(std=...).",
            stacklevel=3,
        )
    low, high = (grid.gather(1, (best + by).clamp(0, _GRID - 1)).squeeze(1) for by in (-1, 1))
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        rising = slope(middle) > 0
        low, high = torch.where(rising, low, middle), torch.where(rising, middle, high)
    return (0.5 * (low + high)).exp()
