"""The evidence lower bound with the divergence of functions instead of weights, at measurement
points.

q(w) = N(m, C) gives a distribution over functions; linearised at m its values at points X are
N(f(X, m), J C J^T). The prior over functions is a Gaussian process, or that of the network's own
weights linearised at the same place. KL[q(f(X)), p(f(X))] grows with the set X and is never above
KL[q(w), p(w)]: what weights do that no function shows costs nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple, final

import torch
from torch import Tensor
from torch.distributions import Normal
from torch.nn.attention import SDPBackend, sdpa_kernel

from credo.core.errors import SettingError
from credo.core.shell import Shell, plain_attention
from credo.core.tree import map_rows, num_rows
from credo.data.source import Source
from credo.engine.elbo import Elbo
from credo.engine.model import Model
from credo.estimators import Estimator
from credo.posteriors import Params, Posterior
from credo.posteriors.jacobian import DenseDerivatives

USUAL = 16  # points outside the data


class Linearised(NamedTuple):
    """Values ``(M, F)`` at the mean weights, and derivatives ``(M, F, *shape)`` by every random
    parameter.
    """

    values: Tensor
    slopes: Params


class Values(NamedTuple):
    """A Gaussian over function values, output by output: mean ``(F, M)`` and covariance ``(F, M,
    M)``.
    """

    mean: Tensor
    cover: Tensor


class FunctionPrior(ABC):
    """What functions are expected before any data."""

    #: Share of the mean prior variance that is added to both covariances: functions are compared up
    #: to noise of that size.
    nugget: float

    @abstractmethod
    def at(self, x: Any, here: Linearised, model: Model, mean: Params) -> Values:
        """Of the values at ``x``."""


@final
class NetworkPrior(FunctionPrior):
    """The functions that the prior over weights gives, linearised where q is: f(m) + J (m0 - m),
    covariance J S0 J^T.

    Both sides vary along the same directions, so next to nothing need be added.
    """

    nugget = 1e-5

    def at(self, x: Any, here: Linearised, model: Model, mean: Params) -> Values:
        """Exact for networks that are linear in their weights."""
        centre, cover = (
            here.values.mT,
            torch.zeros((), dtype=here.values.dtype, device=here.values.device),
        )
        for name, slope in here.slopes.items():
            prior = model.prior.at(model.sites[name])
            if type(prior) is not Normal:
                raise SettingError(
                    f"fvi needs a normal prior over weights, but {name!r} has {prior}; or use "
                    "function_prior='gp'."
                )
            rows = slope.flatten(2).transpose(0, 1)  # (F, M, P)
            away = (prior.loc - mean[name]).expand(mean[name].shape).reshape(-1)
            std = prior.scale.expand(mean[name].shape).reshape(-1).to(rows)
            centre = centre + rows @ away.to(rows)
            cover = cover + (rows * std) @ (rows * std).mT
        return Values(centre, cover)


@final
class GaussianProcessPrior(FunctionPrior):
    """Independent Gaussian processes for all outputs: mean zero, scale^2 exp(-norm(x - x')^2 / (2
    length^2)).

    A network has fewer ways to vary than a process, and without a nugget the divergence would be
    all about the smallest of those.
    """

    nugget = 1e-2

    def __init__(self, length_scale: float, output_scale: float) -> None:
        self.length_scale, self.output_scale = length_scale, output_scale

    def at(self, x: Any, here: Linearised, model: Model, mean: Params) -> Values:
        """The same kernel for every output."""
        if not (isinstance(x, Tensor) and x.is_floating_point()):
            raise SettingError(
                "fvi: a Gaussian process as prior needs inputs of one float tensor; use "
                "function_prior='network'."
            )
        rows = x.flatten(1).to(here.values)
        cover = self.output_scale**2 * torch.exp(
            -0.5 * torch.cdist(rows, rows).square() / self.length_scale**2
        )
        outputs = here.values.shape[1]
        return Values(torch.zeros_like(here.values.mT), cover.expand(outputs, *cover.shape))


@final
class Measurement:
    """Where functions are compared: some of a batch's inputs, and points drawn from a box around
    all inputs.
    """

    def __init__(
        self, source: Source, batch: int, outside: int | None, margin: float, device: torch.device
    ) -> None:
        example = source.example(1)
        boxed = isinstance(example, Tensor) and example.is_floating_point()
        self.batch, self.outside = batch, (USUAL if boxed else 0) if outside is None else outside
        self.low: Tensor | None = None
        self.high: Tensor | None = None
        if not self.outside:
            return
        for x, _ in source(None, 1024):
            if not boxed:
                raise SettingError(
                    f"fvi: num_outside={outside} points beyond the data need inputs of one float "
                    "tensor; use num_outside=0."
                )
            low, high = x.amin(0).to(device), x.amax(0).to(device)
            self.low = low if self.low is None else torch.minimum(self.low, low)
            self.high = high if self.high is None else torch.maximum(self.high, high)
        assert self.low is not None and self.high is not None
        pad = margin * (self.high - self.low)
        self.low, self.high = self.low - pad, self.high + pad

    def points(self, x: Any) -> Any:
        """A fresh set for this batch, from the global generator."""
        total = num_rows(x)
        rows = torch.randperm(total)[: self.batch]
        chosen = map_rows(lambda leaf: leaf[rows.to(leaf.device)], x)
        if self.low is None or self.high is None:
            return chosen
        drawn = (
            torch.rand(self.outside, *self.low.shape, dtype=x.dtype, device=x.device)
            * (self.high - self.low)
            + self.low
        )
        return torch.cat([chosen, drawn])


@final
class FunctionElbo(Elbo):
    """nll as ever; the KL is that of function values at fresh measurement points in every step."""

    def __init__(
        self,
        model: Model,
        posterior: Posterior,
        estimator: Estimator,
        train_samples: int,
        prior: FunctionPrior,
        measurement: Measurement,
    ) -> None:
        super().__init__(model, posterior, estimator, train_samples, kl="optimizer")
        self._prior, self._measurement = prior, measurement
        self._own = [
            Shell(model.net, model.device)
        ]  # of its own, so that the data's pass stays as placed until its gradients are there

    def forward(self, x: Any, y: Tensor) -> tuple[Tensor, Tensor]:
        """Summed nll of the batch, and the KL of function values."""
        divergence = self.function_kl(self._measurement.points(x))
        nll, _ = super().forward(x, y)
        return nll, divergence.to(nll.dtype)

    def divergence(self) -> Tensor | None:
        """Steps compute it."""
        return None

    def function_kl(self, points: Any) -> Tensor:
        """KL[q(f(X)), p(f(X))], summed over outputs."""
        mean = self.posterior.mean()
        here = self._linearise(mean, points)
        rows = {
            name: DenseDerivatives(slope.flatten(2).transpose(0, 1))
            for name, slope in here.slopes.items()
        }
        gaussians = [g for f in self.posterior.factors if (g := f.as_gaussian()) is not None]
        covers = [gaussian.output_covariance(rows) for gaussian in gaussians]
        cover = covers[0] if len(covers) == 1 else torch.stack(covers).sum(0)
        prior = self._prior.at(points, here, self.model, mean)
        size = self._prior.nugget * prior.cover.diagonal(dim1=-2, dim2=-1).mean().detach()
        nugget = size * torch.eye(cover.shape[-1], dtype=cover.dtype, device=cover.device)
        q = torch.distributions.MultivariateNormal(
            here.values.mT, cover + nugget, validate_args=False
        )
        p = torch.distributions.MultivariateNormal(
            prior.mean, prior.cover + nugget, validate_args=False
        )
        return torch.distributions.kl_divergence(q, p).sum()

    def _linearise(self, mean: Params, points: Any) -> Linearised:
        """By vmapped derivatives, kept differentiable."""
        shell = self._own[0]
        shell.train(False)
        shell.place(self.model.frozen())
        shell.place(self.buffers_.tensors())
        shell.place({n: v for n, v in mean.items() if n not in self.model.random})
        start: Mapping[str, Tensor] = {n: mean[n] for n in self.model.random}

        def run(params: Params) -> tuple[Tensor, Tensor]:
            shell.place(params)
            outputs = self.model.outputs(shell, points)
            return outputs, outputs

        with plain_attention(), sdpa_kernel(SDPBackend.MATH):
            slopes, values = torch.func.jacrev(run, has_aux=True)(dict(start))
        return Linearised(values, slopes)
