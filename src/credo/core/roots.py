"""Square roots of covariances."""

from __future__ import annotations

import torch
from torch import Tensor


def semidefinite_root(matrix: Tensor) -> Tensor:
    """R ``(..., N, N)`` with R R^T = matrix, by eigenvalues in double precision: matrices may be singular, and rounding slightly indefinite."""
    if matrix.shape[-1] == 1:
        return matrix.clamp_min(0.0).sqrt()
    values, vectors = torch.linalg.eigh(matrix.double())
    return (vectors * values.clamp_min(0.0).sqrt().unsqueeze(-2)).to(matrix.dtype)
