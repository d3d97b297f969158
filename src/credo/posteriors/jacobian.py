"""Derivatives of a network's outputs by the weights of a layer, in factors or whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rows:
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

    def to(self, dtype: torch.dtype) -> Rows:
        """In another precision."""
        return Rows(self.inputs.to(dtype), self.grads.to(dtype))

    def turned(self, out: Tensor, inner: Tensor) -> Rows:
        """The derivatives by V with W = out V inner^T: the same factors in other coordinates."""
        return Rows(self.inputs @ inner, self.grads @ out)


@dataclass(frozen=True)
class Whole:
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

    def to(self, dtype: torch.dtype) -> Whole:
        """In another precision."""
        return Whole(self.values.to(dtype))


def independent_covariance(rows: Rows | Whole, var: Tensor) -> Tensor:
    """J diag(var) J^T ``(N, K, K)`` for independent weights; with one place per input from the
    factors alone.
    """
    if isinstance(rows, Rows) and rows.inputs.shape[1] == 1:
        weight = rows.inputs[:, 0].square() @ var.reshape(rows.grads.shape[-1], -1).mT
        grads = rows.grads[:, :, 0]
        return (grads * weight.unsqueeze(1)) @ grads.mT
    dense = rows.dense() * var.reshape(-1).sqrt()
    return dense @ dense.mT


def independent_variance(rows: Rows | Whole, var: Tensor) -> Tensor:
    """The diagonal of ``independent_covariance``, ``(N, K)``."""
    if isinstance(rows, Rows) and rows.inputs.shape[1] == 1:
        weight = rows.inputs[:, 0].square() @ var.reshape(rows.grads.shape[-1], -1).mT
        return (rows.grads[:, :, 0].square() @ weight.unsqueeze(-1)).squeeze(-1)
    return rows.dense().square() @ var.reshape(-1)


Jacobian = Mapping[str, Rows | Whole]  # by parameter


def joined(jacobian: Jacobian, names: tuple[str, ...]) -> Tensor:
    """The derivatives by several parameters side by side, ``(N, K, P)``."""
    return torch.cat([jacobian[name].dense() for name in names], -1)
