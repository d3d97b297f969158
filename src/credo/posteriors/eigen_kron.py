"""Gaussians that are independent in the eigenvectors of Kronecker factors: what KFAC Laplace ends
in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from credo.core.seeds import Noise
from credo.posteriors.draw import Draw, Params
from credo.posteriors.family import Gaussian, families, gaussian_entropy
from credo.posteriors.jacobian import (
    FactoredDerivatives,
    Jacobian,
    independent_covariance,
    independent_variance,
)


@families.register("eigen_kron")
class EigenKron(Gaussian):
    """W = M + Q (S * E) P^T for a weight as a matrix (out, in): Q and P orthogonal, S the
    deviations in their coordinates.

    With the eigenvectors Q, P and eigenvalues b, a of two Kronecker factors and S_oi = (b_o a_i +
    d)^(-1/2) it is the exact Gaussian with precision B x A + d I, which a matrix normal is not. A
    bias is a column by itself, P = 1.
    """

    name: ClassVar[str] = "eigen_kron"
    factored: ClassVar[bool] = True

    def __init__(self, shapes: Mapping[str, Sequence[int]], dtype: str = "float32") -> None:
        super().__init__(shapes)
        if len(self.shapes) != 1:
            raise ValueError(f"eigen_kron is for one parameter, got {list(self.shapes)}")
        (self.weight,) = self.names
        shape, kind = self.shapes[self.weight], getattr(torch, dtype)
        rows, cols = (shape[0], shape[1:].numel()) if shape else (1, 1)
        self.matrix = nn.Parameter(torch.zeros(rows, cols, dtype=kind))
        self.left = nn.Parameter(torch.eye(rows, dtype=kind))
        self.right = nn.Parameter(torch.eye(cols, dtype=kind))
        self.log_std = nn.Parameter(torch.zeros(rows, cols, dtype=kind))

    @classmethod
    def of(cls, name: str, value: Tensor, left: Tensor, right: Tensor, std: Tensor) -> EigenKron:
        """Mean ``value``, eigenvectors ``left`` (out, out) and ``right`` (in, in), deviations
        ``std`` (out, in) along them.
        """
        family = cls({name: value.shape}, str(value.dtype).removeprefix("torch.")).to(value.device)
        with torch.no_grad():
            family.matrix.copy_(value.reshape(family.matrix.shape))
            family.left.copy_(left)
            family.right.copy_(right)
            family.log_std.copy_(std.log())
        return family

    def _shaped(self, matrix: Tensor) -> Params:
        return {self.weight: matrix.reshape((*matrix.shape[:-2], *self.shapes[self.weight]))}

    def _flat(self, latents: Params) -> Tensor:
        value, shape = latents[self.weight], self.shapes[self.weight]
        return value.reshape((*value.shape[: value.dim() - len(shape)], *self.matrix.shape))

    def begin(self, noise: Noise, fold: Any = None) -> EigenKronDraw:
        """Draw E."""
        return EigenKronDraw(self, noise)

    def mean(self) -> Params:
        """M."""
        return self._shaped(self.matrix)

    def marginals(self) -> tuple[Params, Params]:
        """Means, and (Q * Q) (S * S) (P * P)^T."""
        return self.mean(), self._shaped(
            self.left.square() @ (2.0 * self.log_std).exp() @ self.right.square().mT
        )

    def entropy(self) -> Tensor:
        """sum log S + n/2 log 2 pi e."""
        return gaussian_entropy(self.log_std.sum(), self.log_std.numel())

    def log_prob(self, latents: Params) -> Tensor:
        """Normal log densities in the eigenvectors' coordinates, summed."""
        turned = self.left.mT @ (self._flat(latents) - self.matrix) @ self.right
        normal = torch.distributions.Normal(
            torch.zeros_like(self.log_std), self.log_std.exp(), validate_args=False
        )
        return normal.log_prob(turned).sum((-2, -1))

    def covariance(self) -> Tensor:
        """The whole covariance over the flat weight, (P, P); for small layers."""
        basis = torch.kron(self.left, self.right)
        return (basis * (2.0 * self.log_std).exp().reshape(-1)) @ basis.mT

    def times_root(self, jacobian: Tensor) -> Tensor:
        """(Q^T G P) * S for the derivatives G by the matrix."""
        turned = self.left.mT @ jacobian.unflatten(-1, self.matrix.shape) @ self.right
        return (turned * self.log_std.exp()).flatten(-2)

    def output_covariance(self, jacobian: Jacobian) -> Tensor:
        """J C J^T from the factors: with one place per input no derivative is ever written out."""
        part, var = jacobian[self.weight], (2.0 * self.log_std).exp()
        if not isinstance(part, FactoredDerivatives):
            return super().output_covariance(jacobian)
        return independent_covariance(part.turned(self.left, self.right), var)

    def output_variance(self, jacobian: Jacobian) -> Tensor:
        """The diagonal of ``output_covariance``, ``(N, K)``."""
        part, var = jacobian[self.weight], (2.0 * self.log_std).exp()
        if not isinstance(part, FactoredDerivatives):
            return super().output_variance(jacobian)
        return independent_variance(part.turned(self.left, self.right), var)

    def config(self) -> dict[str, Any]:
        """Shape and dtype."""
        return super().config() | {"dtype": str(self.matrix.dtype).removeprefix("torch.")}


class EigenKronDraw(Draw):
    """One pass of an :class:`EigenKron`."""

    def __init__(self, family: EigenKron, noise: Noise) -> None:
        eps = noise.normal(family.weight, family.matrix.shape, family.matrix)
        self.whole = family._shaped(
            family.matrix + family.left @ (family.log_std.exp() * eps) @ family.right.mT
        )

    def weights(self, names: Iterable[str]) -> Params:
        """M + Q (S * E) P^T."""
        return {name: self.whole[name] for name in names}
