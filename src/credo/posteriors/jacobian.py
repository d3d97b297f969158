"""Derivatives of a network's outputs by the weights of a layer, in factors or whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class FactoredDerivatives:
    """d f_k / d W = sum_r grads[:, k, r] inputs[:, r]^T for N inputs and K directions of the
    outputs, at R places where W is used.

    ``inputs`` ``(N, R, I)``, ``grads`` ``(N, K, R, O)``; the bias is a weight whose input is one.
    Never larger than the activations, where the derivatives themselves have N K O I numbers.
    """

    inputs: Tensor
    grads: Tensor

    def dense(self) -> Tensor:
        """The derivatives themselves, ``(N, K, O I)``."""
        if self.inputs.shape[1] == 1:
            return (self.grads[:, :, 0, :, None] * self.inputs[:, None, 0, None, :]).flatten(2)
        return torch.einsum("nkro,nri->nkoi", self.grads, self.inputs).flatten(2)

    def at(self, places: Tensor) -> Tensor:
        """The derivatives by single weights at these flat places, ``(N, K, S)``, by whichever way
        writes out less.
        """
        if self.inputs.shape[1] * len(places) > self.grads.shape[-1] * self.inputs.shape[-1]:
            return self.dense()[..., places]
        width = self.inputs.shape[-1]
        return (
            self.grads[..., places // width] * self.inputs.unsqueeze(1)[..., places % width]
        ).sum(2)

    def to(self, dtype: torch.dtype) -> FactoredDerivatives:
        """In another precision."""
        return FactoredDerivatives(self.inputs.to(dtype), self.grads.to(dtype))

    def turned(self, out: Tensor, inner: Tensor) -> FactoredDerivatives:
        """The derivatives by V with W = out V inner^T: the same factors in other coordinates."""
        return FactoredDerivatives(self.inputs @ inner, self.grads @ out)


@dataclass(frozen=True)
class DenseDerivatives:
    """Derivatives ``(N, K, *shape)`` as they are, flattened to ``(N, K, P)``, of a parameter that
    no factors are known for.
    """

    values: Tensor

    def dense(self) -> Tensor:
        """Themselves."""
        return self.values

    def at(self, places: Tensor) -> Tensor:
        """The derivatives by single weights at these flat places, ``(N, K, S)``."""
        return self.values[..., places]

    def to(self, dtype: torch.dtype) -> DenseDerivatives:
        """In another precision."""
        return DenseDerivatives(self.values.to(dtype))


def independent_covariance(
    derivatives: FactoredDerivatives | DenseDerivatives, var: Tensor
) -> Tensor:
    """J diag(var) J^T ``(N, K, K)`` for independent weights; with one place per input from the
    factors alone.
    """
    if isinstance(derivatives, FactoredDerivatives) and derivatives.inputs.shape[1] == 1:
        weight = derivatives.inputs[:, 0].square() @ var.reshape(derivatives.grads.shape[-1], -1).mT
        grads = derivatives.grads[:, :, 0]
        return (grads * weight.unsqueeze(1)) @ grads.mT
    dense = derivatives.dense() * var.reshape(-1).sqrt()
    return dense @ dense.mT


def independent_variance(
    derivatives: FactoredDerivatives | DenseDerivatives, var: Tensor
) -> Tensor:
    """The diagonal of ``independent_covariance``, ``(N, K)``."""
    if isinstance(derivatives, FactoredDerivatives) and derivatives.inputs.shape[1] == 1:
        weight = derivatives.inputs[:, 0].square() @ var.reshape(derivatives.grads.shape[-1], -1).mT
        return (derivatives.grads[:, :, 0].square() @ weight.unsqueeze(-1)).squeeze(-1)
    return derivatives.dense().square() @ var.reshape(-1)


Jacobian = Mapping[str, FactoredDerivatives | DenseDerivatives]  # by parameter


def joined(jacobian: Jacobian, names: tuple[str, ...]) -> Tensor:
    """The derivatives by several parameters side by side, ``(N, K, P)``."""
    return torch.cat([jacobian[name].dense() for name in names], -1)
