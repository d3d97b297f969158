"""Square roots of covariances."""

from __future__ import annotations

import torch
from torch import Tensor


def semidefinite_root(matrix: Tensor) -> Tensor:
    """The symmetric R ``(..., N, N)`` with R R = matrix, by eigenvalues in double precision; small
    ones below zero are rounding and count as zero.

    There is one such R, so that what is drawn with it is the same on every machine; other roots
    follow the signs of eigenvectors, which are not.
    """
    if matrix.shape[-1] == 1:
        return matrix.clamp_min(0.0).sqrt()
    values, vectors = torch.linalg.eigh(matrix.double())
    return ((vectors * values.clamp_min(0.0).sqrt().unsqueeze(-2)) @ vectors.mT).to(matrix.dtype)
