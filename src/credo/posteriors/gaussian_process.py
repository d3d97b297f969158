"""Sparse variational Gaussian processes: functions known by their values at a few inducing points
(needs gpytorch, ``credo-bayes[gp]``).

f ~ GP(m, k), u = f(Z) = m + L v with L L^T = k(Z, Z) + jitter, and q(v) = N(a, S): all of f is then
q(f) = integral of p(f given u) q(u), with mean m + A^T a and variance k(x, x) + A^T (S - I) A for A
= L^-1 k(Z, x). KL[q(u), p(u)] = KL[N(a, S), N(0, I)], in nats, a sum over outputs.
"""

from __future__ import annotations

import importlib.util
import math
import threading
from abc import abstractmethod
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from credo.core.errors import CredoError, DataError, NetworkError, SettingError
from credo.core.shell import Shell
from credo.posteriors.family import families
from credo.posteriors.process import Process, RowNoise, gaussian_outputs

_BUDGET = 1 << 24  # covariances with inducing points held at once by a prediction
# variance, below gpytorch's jitter of 1e-6: rounding alone goes there, and its root has no slope at
# zero
_LEAST = 1e-12
_LOCK = (
    threading.RLock()
)  # gpytorch keeps a factor, and which of two ways it computes, on the module itself


def gpytorch_of(owner: str) -> Any:
    """The package gpytorch, or an error that says who needs it."""
    if importlib.util.find_spec("gpytorch") is None:
        raise SettingError(f"{owner} needs the package 'gpytorch': pip install 'credo-bayes[gp]'.")
    import gpytorch

    return gpytorch


@final
class SparseLayer(nn.Module):
    """F independent sparse processes of D inputs, in double precision: an RBF kernel with one
    length scale and one output scale per process.

    Inputs are first moved and scaled by fixed numbers, so that those it started from have mean 0
    and a mean squared distance of 2 whatever D is: lengths of 1, where kernels start, then mean
    something. The mean is a learned constant, or with ``linear`` the inputs themselves (their main
    directions, where F < D). Inducing points are shared by the processes.
    """

    shift: Tensor  # (D,)
    scale: Tensor  # (D,)
    projection: Tensor | None  # (D, F), of scaled inputs

    def __init__(self, features: int, outputs: int, inducing: int, linear: bool = False) -> None:
        gp = gpytorch_of("A Gaussian process")
        super().__init__()
        self.features, self.outputs, self.inducing = features, outputs, inducing
        self.register_buffer("shift", torch.zeros(features))
        self.register_buffer("scale", torch.ones(features))
        self.register_buffer("projection", torch.zeros(features, outputs) if linear else None)
        batch = torch.Size((outputs,))
        self.mean_module = (gp.means.ZeroMean if linear else gp.means.ConstantMean)(
            batch_shape=batch
        )
        self.covar_module = gp.kernels.ScaleKernel(
            gp.kernels.RBFKernel(batch_shape=batch), batch_shape=batch
        )
        values = gp.variational.CholeskyVariationalDistribution(inducing, batch_shape=batch)
        self.strategy = gp.variational.VariationalStrategy(
            self, torch.zeros(inducing, features), values
        )
        self.strategy.variational_params_initialized.fill_(
            1
        )  # q is set here, not drawn by gpytorch at the first call
        self.covar_module.base_kernel.lengthscale, self.covar_module.outputscale = 1.0, 1.0
        self.double()

    @classmethod
    @torch.no_grad()
    def start(
        cls,
        rows: Tensor,
        outputs: int,
        inducing: int,
        source: torch.Generator,
        init_std: float = 1.0,
        linear: bool = False,
    ) -> SparseLayer:
        """Scaled by ``rows`` ``(R, D)``, with inducing points at different ones of them (all, if
        they are fewer), q(v) = N(0, init_std^2 I).
        """
        rows = rows.double()
        shift, std = rows.mean(0), rows.std(0, correction=0)
        typical = std.square().mean().sqrt()
        std = torch.where(
            std > 1e-6 * typical, std, typical if float(typical) > 0 else torch.ones_like(typical)
        )
        scale = std * math.sqrt(rows.shape[1])
        scaled = (rows - shift) / scale
        points = scaled.unique(dim=0)
        points = points[torch.randperm(len(points), generator=source)[:inducing].to(points.device)]
        layer = cls(rows.shape[1], outputs, len(points), linear).to(rows.device)
        layer.shift.copy_(shift)
        layer.scale.copy_(scale)
        if layer.projection is not None:
            layer.projection.copy_(math.sqrt(rows.shape[1]) * _directions(scaled, outputs))
        layer.strategy.inducing_points.copy_(points)
        layer.strategy._variational_distribution.chol_variational_covar.mul_(init_std)
        return layer

    def forward(self, points: Tensor) -> Any:
        """The prior of the values at scaled inputs, as gpytorch asks for it."""
        gp = gpytorch_of("A Gaussian process")
        return gp.distributions.MultivariateNormal(
            self.mean_module(points), self.covar_module(points)
        )

    def marginals_at(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of every value, ``(R, F)`` each, for rows ``(R, D)``."""
        parts = [
            self._values(part, False)
            for part in rows.split(max(1, _BUDGET // (self.inducing * self.outputs)))
        ]
        mean, var = (torch.cat([part[which] for part in parts]) for which in (0, 1))
        return mean, var.clamp_min(_LEAST)

    def joint_at(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Mean ``(R, F)`` and covariance between rows ``(F, R, R)``."""
        return self._values(rows, True)

    def own_kl(self) -> Tensor:
        """KL[q(u), p(u)] in nats, summed over the processes."""
        with _LOCK:
            try:
                return self.strategy.kl_divergence().sum()
            finally:
                self._forget()

    def linear(self, rows: Tensor) -> Tensor:
        """The fixed part of the mean, ``(R, F)``; 0 unless it is linear."""
        points = self._scaled(rows)
        return (
            points.new_zeros(len(points), self.outputs)
            if self.projection is None
            else points @ self.projection
        )

    def _values(self, rows: Tensor, whole: bool) -> tuple[Tensor, Tensor]:
        from linear_operator.utils.errors import NanError, NotPSDError

        points = self._scaled(rows)
        with _LOCK:
            self.strategy.train(not whole)  # while it trains, gpytorch may compute variances alone
            try:
                found = self.strategy(points)
                mean, cov = (found.mean.mT, found.covariance_matrix if whole else found.variance.mT)
            except (NanError, NotPSDError) as error:
                raise CredoError(
                    f"The covariance of {self.inducing} inducing points has no Cholesky factor "
                    f"({error}); use a smaller lr or fewer inducing points."
                ) from error
            finally:
                self._forget()
        return mean if self.projection is None else mean + points @ self.projection, cov

    def _forget(self) -> None:
        """Drop what gpytorch remembers: it would outlive a change of the numbers or of the
        device.
        """
        from gpytorch.utils.memoize import clear_cache_hook

        clear_cache_hook(self.strategy)
        self.strategy.train(True)

    def _scaled(self, rows: Tensor) -> Tensor:
        if rows.dim() != 2 or rows.shape[1] != self.features:
            raise DataError(
                f"The process takes {self.features} numbers per example, but these rows have "
                f"shape {tuple(rows.shape)}."
            )
        return (rows.double() - self.shift) / self.scale


def _directions(scaled: Tensor, width: int) -> Tensor:
    """Orthonormal columns ``(D, width)``: all axes where D <= width (zeros after them), else the
    main directions of centred rows.
    """
    features = scaled.shape[1]
    if features <= width:
        return torch.eye(features, width, dtype=scaled.dtype, device=scaled.device)
    found = torch.linalg.svd(scaled, full_matrices=False).Vh.mT[:, :width]
    missing = width - found.shape[1]
    return found if missing <= 0 else torch.nn.functional.pad(found, (0, missing))


class SparseProcess(Process):
    """A process learned by its bound: sum over data of E_q(f)[-log p(y given f)], plus KL[q(u),
    p(u)].
    """

    @abstractmethod
    def conditionals(self, inputs: Tensor, samples: int) -> tuple[Tensor, Tensor]:
        """Mean and variance of the values ``(S, N, F)`` given ``samples`` draws, from the global
        generator, of all that is before the last layer.

        S = 1 where nothing is.
        """

    @abstractmethod
    def own_kl(self) -> Tensor:
        """KL[q(u), p(u)] in nats, of all layers and outputs."""


@families.register("sparse_gp")
@final
class SparseGP(SparseProcess):
    """F independent sparse processes on what one layer of a network, at the path ``layer``, is
    given.

    The layer itself never runs. Its weights are not in the posterior.
    """

    name: ClassVar[str] = "sparse_gp"

    def __init__(self, layer: str, features: int, outputs: int, inducing: int) -> None:
        super().__init__({})
        self.layer, self.gp = layer, SparseLayer(features, outputs, inducing)

    @classmethod
    def start(
        cls, layer: str, rows: Tensor, outputs: int, inducing: int, source: torch.Generator
    ) -> SparseGP:
        """The prior, on features like ``rows`` ``(R, D)``, with inducing points at some of them."""
        gp = SparseLayer.start(rows, outputs, inducing, source)
        family = cls(layer, gp.features, outputs, gp.inducing)
        family.gp = gp
        return family

    def read(self, shell: Shell, x: Any) -> Tensor:
        """What the layer is given, ``(N, D)``."""
        return given(shell, x, self.layer, self.gp.outputs)

    def conditionals(self, inputs: Tensor, samples: int) -> tuple[Tensor, Tensor]:
        """The marginals, ``(1, N, F)``."""
        mean, var = self.marginals_at(inputs)
        return mean.unsqueeze(0), var.unsqueeze(0)

    def own_kl(self) -> Tensor:
        """Of the one layer."""
        return self.gp.own_kl()

    def outputs(self, inputs: Tensor, noise: RowNoise, joint: bool) -> Tensor:
        """Function values ``(S, N, F)``."""
        return gaussian_outputs(self, inputs.double(), noise, joint).to(inputs.dtype)

    def average(self, inputs: Tensor) -> Tensor:
        """The mean function ``(N, F)``."""
        return self.marginals_at(inputs)[0]

    def marginals_at(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the function at every input, ``(N, F)`` each, without observation
        noise.
        """
        mean, var = self.gp.marginals_at(inputs)
        return mean.to(inputs.dtype), var.to(inputs.dtype)

    def joint_at(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean ``(N, F)`` and covariance between inputs ``(F, N, N)``."""
        mean, cover = self.gp.joint_at(inputs)
        return mean.to(inputs.dtype), cover.to(inputs.dtype)

    def config(self) -> dict[str, Any]:
        """The layer's path, and sizes."""
        sizes = {
            "features": self.gp.features,
            "outputs": self.gp.outputs,
            "inducing": self.gp.inducing,
        }
        return {"name": self.name, "layer": self.layer} | sizes


def given(shell: Shell, x: Any, layer: str, outputs: int) -> Tensor:
    """What the module at ``layer`` is given in a pass, ``(N, D)``; zeros ``(N, outputs)`` stand for
    what it would have made of it.

    Refused unless the pass calls it exactly once, with one tensor of two axes.
    """
    module = shell.module.get_submodule(layer)
    seen: list[Tensor] = []
    own = module.__dict__.get("forward")

    def stand_in(*args: Any, **others: Any) -> Tensor:
        rows = args[0] if len(args) == 1 and not others else None
        if not isinstance(rows, Tensor) or rows.dim() != 2:
            shown = (
                tuple(rows.shape)
                if isinstance(rows, Tensor)
                else f"{len(args)} positional and {len(others)} named arguments"
            )
            raise NetworkError(
                f"{described(module, layer)} is given {shown}; a process in its place needs one "
                "tensor (N, D)."
            )
        seen.append(rows)
        return rows.new_zeros(len(rows), outputs)

    module.forward = stand_in
    try:
        shell(x)
    finally:
        del module.forward
        if own is not None:
            module.forward = own
    if len(seen) != 1:
        raise NetworkError(
            f"{described(module, layer)} is called {len(seen)} times in a pass; a process takes "
            "the place of one call."
        )
    return seen[0]


def described(module: nn.Module, layer: str) -> str:
    """A module by its path and type, for errors."""
    return f"The last layer, {layer or 'the network itself'!r} ({type(module).__name__}),"
