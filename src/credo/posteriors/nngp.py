"""The posterior over functions of an infinitely wide network, given data with Gaussian noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from credo.core.errors import CredoError, DataError
from credo.posteriors.family import families
from credo.posteriors.process import Process, RowNoise, gaussian_outputs
from credo.posteriors.wide_kernel import Numbers, layers, wide_kernel, wide_variance

MAX_ROWS = 20_000  # a matrix between all of them then takes 3.2 GB
_BUDGET = 1 << 24  # covariances with the data held at once by a prediction


@families.register("nngp")
class WideNetwork(Process):
    """f given D ~ GP(k(x)^T (K + s^2 I)^-1 y, K(x, x') - k(x)^T (K + s^2 I)^-1 k(x')), K the prior
    covariance of the wide limit.

    The outputs share the kernel and are independent of each other; noise is one variance for all of
    them or one each. Everything is kept and computed in double precision; results come in the type
    of the inputs. Memory grows with the square of the number of data.
    """

    name: ClassVar[str] = "nngp"
    of_network: ClassVar[bool] = True
    inputs: Tensor  # (N, D)
    factor: (
        Tensor  # (G, N, N): Cholesky factors of K + s^2 I, one for all outputs (G = 1) or one each
    )
    alpha: Tensor  # (N, F): (K + s^2 I)^-1 y
    weight_variances: Tensor  # (L,): sigma_w^2 by layer
    bias_variances: Tensor  # (L,)

    def __init__(
        self, num_data: int, features: int, outputs: int, noises: int, activations: Sequence[str]
    ) -> None:
        super().__init__({})
        self.activations = tuple(activations)
        depth = len(self.activations) + 1
        shapes = {
            "inputs": (num_data, features),
            "factor": (noises, num_data, num_data),
            "alpha": (num_data, outputs),
        }
        for name, shape in (
            shapes | {"weight_variances": (depth,), "bias_variances": (depth,)}
        ).items():
            self.register_buffer(name, torch.empty(shape, dtype=torch.float64))

    @classmethod
    def condition(
        cls,
        inputs: Tensor,
        targets: Tensor,
        noise_var: Tensor,
        weight_variances: Numbers,
        bias_variances: Numbers,
        activations: Sequence[str],
    ) -> WideNetwork:
        """The posterior given ``inputs`` ``(N, D)`` and ``targets`` ``(N, F)`` with noise of
        variance ``noise_var``, ``(1,)`` or ``(F,)``.
        """
        check_rows(len(inputs), len(noise_var))
        weights, biases = layers(weight_variances, bias_variances, activations)
        inputs, targets, noise_var = (
            inputs.double(),
            targets.double(),
            noise_var.double().to(inputs.device),
        )
        family = cls(len(inputs), inputs.shape[1], targets.shape[1], len(noise_var), activations)
        family.inputs = inputs.clone()
        family.weight_variances, family.bias_variances = (
            inputs.new_tensor(v) for v in (weights, biases)
        )
        cover = family.prior_covariance(inputs, inputs).repeat(len(noise_var), 1, 1)
        cover.diagonal(dim1=-2, dim2=-1).add_(noise_var.unsqueeze(1))
        factor, failed = torch.linalg.cholesky_ex(cover)
        if bool(failed.any()):
            raise CredoError(
                "K + s^2 I has no Cholesky factor in double precision: the noise s = "
                f"{float(noise_var.min().sqrt()):.3g} is too small beside "
                "prior deviations up to "
                f"{float(cover.diagonal(dim1=-2, dim2=-1).max().sqrt()):.3g}; use a larger std, "
                "or leave out repeated inputs."
            )
        family.factor = factor
        family.alpha = family._joined(
            torch.cholesky_solve(family._grouped(targets), factor)
        ).contiguous()
        return family

    def log_evidence(self, targets: Tensor) -> float:
        """log N(y; 0, K + s^2 I) in nats, summed over outputs; ``targets`` are those it was
        conditioned on.
        """
        num_data, outputs = self.alpha.shape
        misfit = float((targets.to(self.alpha) * self.alpha).sum())
        log_det = (
            2.0
            * float(self.factor.diagonal(dim1=-2, dim2=-1).log().sum())
            * outputs
            / len(self.factor)
        )
        return -0.5 * (misfit + log_det + num_data * outputs * math.log(2.0 * math.pi))

    def prior_covariance(self, x1: Tensor, x2: Tensor) -> Tensor:
        """K(x1, x2) of one output before any data, ``(N1, N2)``."""
        return wide_kernel(x1, x2, self.weight_variances, self.bias_variances, self.activations)

    def prior_variance(self, x: Tensor) -> Tensor:
        """Its diagonal ``(N,)``."""
        return wide_variance(x, self.weight_variances, self.bias_variances, self.activations)

    def outputs(self, inputs: Tensor, noise: RowNoise, joint: bool) -> Tensor:
        """Function values ``(S, N, F)``, of functions or of every input by itself."""
        return gaussian_outputs(self, inputs.double(), noise, joint).to(inputs.dtype)

    def average(self, inputs: Tensor) -> Tensor:
        """The mean function ``(N, F)``."""
        rows = [
            self.prior_covariance(part, self.inputs) @ self.alpha for part in self._parts(inputs)
        ]
        return torch.cat(rows).to(inputs.dtype)

    def marginals_at(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the function at every input, ``(N, F)`` each, without observation
        noise.
        """
        means, variances = [], []
        for part in self._parts(inputs):
            cross = self.prior_covariance(part, self.inputs)
            means.append(cross @ self.alpha)
            told = (
                torch.linalg.solve_triangular(self.factor, cross.mT, upper=False).square().sum(-2)
            )
            variances.append((self.prior_variance(part) - told).clamp_min(0.0))  # (G, n)
        mean = torch.cat(means)
        return mean.to(inputs.dtype), torch.cat(variances, 1).mT.expand_as(mean).to(inputs.dtype)

    def joint_at(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean ``(N, F)`` and covariance between inputs, ``(N, N)`` or with noise of their own
        ``(F, N, N)``.
        """
        check_rows(len(inputs), len(self.factor))
        (points,) = self._parts(inputs, len(inputs))
        cross = self.prior_covariance(points, self.inputs)
        white = torch.linalg.solve_triangular(self.factor, cross.mT, upper=False)
        cover = self.prior_covariance(points, points) - white.mT @ white
        return (cross @ self.alpha).to(inputs.dtype), (cover[0] if len(cover) == 1 else cover).to(
            inputs.dtype
        )

    def config(self) -> dict[str, Any]:
        """Sizes and activations."""
        num_data, features = self.inputs.shape
        return {
            "name": self.name,
            "num_data": num_data,
            "features": features,
            "outputs": self.alpha.shape[1],
            "noises": len(self.factor),
            "activations": list(self.activations),
        }

    def _parts(self, inputs: Tensor, rows: int | None = None) -> Sequence[Tensor]:
        """The inputs in double precision, some at a time; refused where they are no rows of the
        network's.
        """
        if inputs.dim() != 2 or inputs.shape[1] != self.inputs.shape[1]:
            raise DataError(
                f"The network takes {self.inputs.shape[1]} numbers per example, but these inputs "
                f"have shape {tuple(inputs.shape)}."
            )
        return inputs.to(self.inputs).split(
            rows or max(1, _BUDGET // (len(self.inputs) * len(self.factor)))
        )

    def _grouped(self, columns: Tensor) -> Tensor:
        """``(N, F)`` as ``(G, N, F / G)``, to meet the factors."""
        return columns.mT.reshape(len(self.factor), -1, len(columns)).mT

    def _joined(self, groups: Tensor) -> Tensor:
        """The inverse of ``_grouped``."""
        return groups.mT.reshape(-1, groups.shape[-2]).mT


def check_rows(count: int, noises: int = 1) -> None:
    """Refuse more rows than matrices between them fit in memory."""
    if count > MAX_ROWS:
        size = 8e-9 * (noises + 2) * count**2  # the factors, the kernel, and one to work with
        raise CredoError(
            f"nngp works with matrices between all {count} inputs, which would take about "
            f"{size:.0f} GB in double precision; at most {MAX_ROWS} "
            "are allowed. Take fewer, or a method that learns weights, such as 'vi'."
        )
