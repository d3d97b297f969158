"""Several real targets whose noise is correlated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, MultivariateNormal, Normal

from credo.core.errors import DataError, SettingError
from credo.likelihoods.base import likelihoods
from credo.likelihoods.continuous_likelihood import ContinuousLikelihood
from credo.likelihoods.mixtures import make_generator


@likelihoods.register("full_gaussian")
class FullGaussian(ContinuousLikelihood):
    """y ~ N(f, L L') with one D x D covariance for all inputs: fixed by ``covariance``, else
    learned for ``num_outputs`` = D.

    The parameter ``tril`` ``(P,)``, P = D (D + 1) / 2, holds log diagonal and then the strict lower
    triangle of L row by row; it starts at the identity. A sample axis in front of it has shape
    ``(S, 1, P)``.
    """

    name: ClassVar[str] = "full_gaussian"
    latents_per_target: ClassVar[int | None] = None
    log_size: ClassVar[str | None] = "tril"
    tril: Tensor
    place: Tensor

    def __init__(
        self, covariance: Sequence[Sequence[float]] | None = None, num_outputs: int = 1
    ) -> None:
        if covariance is not None:
            covariance = [[float(v) for v in row] for row in covariance]
            num_outputs = len(covariance)
        if isinstance(num_outputs, bool) or not isinstance(num_outputs, int) or num_outputs < 1:
            raise SettingError(
                f"FullGaussian: num_outputs={num_outputs!r} is not valid; expected a whole number "
                "from 1."
            )
        super().__init__(covariance=covariance, num_outputs=num_outputs)
        self.dim = num_outputs
        rows, columns = torch.tril_indices(num_outputs, num_outputs, -1)
        # A 0/1 matrix that puts the strict lower triangle in its place: a product broadcasts over
        # sample axes where indexing does not.
        place = torch.zeros(len(rows), num_outputs * num_outputs)
        place[torch.arange(len(rows)), rows * num_outputs + columns] = 1.0
        self.register_buffer("place", place, persistent=False)
        if covariance is None:
            self.tril = nn.Parameter(torch.zeros(num_outputs + len(rows)))
        else:
            cholesky = self._cholesky_of(covariance)
            packed = torch.cat([cholesky.diagonal().log(), cholesky[rows, columns]])
            self.register_buffer("tril", packed, persistent=False)

    @staticmethod
    def _cholesky_of(covariance: list[list[float]]) -> Tensor:
        try:
            matrix = torch.tensor(covariance, dtype=torch.float64)
        except ValueError as problem:
            raise SettingError(
                f"FullGaussian: covariance={covariance!r} has rows of different lengths; expected "
                "D rows of D numbers."
            ) from problem
        square = matrix.dim() == 2 and matrix.shape[0] == matrix.shape[1]
        if not square or not bool(matrix.isfinite().all()) or not torch.allclose(matrix, matrix.T):
            raise SettingError(
                f"FullGaussian: covariance={covariance!r} is not valid; expected a symmetric "
                "matrix of finite numbers."
            )
        cholesky, failed = torch.linalg.cholesky_ex(matrix)
        if int(failed):
            raise SettingError(
                f"FullGaussian: covariance={covariance!r} is not positive definite; expected all "
                "eigenvalues above 0."
            )
        return cholesky

    def in_units(self, std: Tensor) -> Self:
        """Rows of L times ``std``."""
        other, packed = self.frozen(), self.tril.detach()
        rows, std = torch.tril_indices(self.dim, self.dim, -1)[0], std.to(packed)
        diagonal, lower = packed[..., : self.dim] + std.log(), packed[..., self.dim :] * std[rows]
        for table in (other._parameters, other._buffers):
            if "tril" in table:
                table["tril"] = nn.Parameter(torch.cat([diagonal, lower], -1), False)
        return other

    def cholesky(self, outputs: Tensor) -> Tensor:
        """L, ``(D, D)`` with the parameter's leading axes in front, ready to broadcast against
        ``(..., N, D, D)``.
        """
        packed = self.tril.to(outputs.dtype)
        lower = (packed[..., self.dim :] @ self.place.to(outputs.dtype)).unflatten(
            -1, (self.dim, self.dim)
        )
        return lower + torch.diag_embed(packed[..., : self.dim].exp())

    def target_dim(self, num_outputs: int) -> int:
        """One output per target."""
        return num_outputs

    def num_outputs(self, y: Tensor) -> int:
        """D."""
        return self.dim

    def check_targets(self, y: Any) -> Tensor:
        """Finite floats ``(N, D)`` with the D this likelihood was made for."""
        y = super().check_targets(y)
        if y.shape[1] != self.dim:
            raise DataError(
                f"full_gaussian: the targets have {y.shape[1]} columns; expected {self.dim}: "
                f"use FullGaussian(num_outputs={y.shape[1]})."
            )
        return y

    def forward(self, outputs: Tensor) -> Distribution:
        """``MultivariateNormal`` with batch shape ``(..., N)``, event shape ``(D,)``."""
        return MultivariateNormal(outputs, scale_tril=self.cholesky(outputs), validate_args=False)

    def information(self, outputs: Tensor) -> Tensor:
        """The inverse covariance, the same for every datum."""
        inverse = torch.cholesky_inverse(self.cholesky(outputs))
        return inverse.expand(*outputs.shape[:-1], self.dim, self.dim)

    def marginals(self, outputs: Tensor) -> Distribution:
        """``Normal`` with batch shape ``(..., N, D)``."""
        return Normal(outputs, self.cholesky(outputs).square().sum(-1).sqrt(), validate_args=False)

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """-1/2 |L^-1 (y - f)|^2 - log det L - D/2 log 2 pi, ``(..., N)``, without copying L once
        per datum.
        """
        cholesky = self.cholesky(outputs)
        gap = (y.to(outputs.dtype) - outputs).unsqueeze(-1)
        white = torch.linalg.solve_triangular(cholesky, gap, upper=False).squeeze(-1)
        return (
            -0.5 * white.square().sum(-1)
            - self._log_det(cholesky)
            - 0.5 * self.dim * math.log(2.0 * math.pi)
        )

    def expected_log_prob(self, mean: Tensor, var: Tensor, y: Tensor) -> Tensor:
        """log N(y; mean, L L') - 1/2 sum_d var_d [(L L')^-1]_dd, ``(..., N)``."""
        cholesky = self.cholesky(mean)
        eye = torch.eye(self.dim, dtype=mean.dtype, device=mean.device)
        precision = torch.linalg.solve_triangular(cholesky, eye, upper=False).square().sum(-2)
        return self.log_prob(mean, y) - 0.5 * (var * precision).sum(-1)

    def entropy(self, outputs: Tensor) -> Tensor:
        """D/2 log(2 pi e) + log det L, ``(..., N)``."""
        constant = 0.5 * self.dim * math.log(2.0 * math.pi * math.e)
        return (constant + self._log_det(self.cholesky(outputs))).expand(outputs.shape[:-1])

    def sample(self, outputs: Tensor, generator: torch.Generator | int = 0) -> Tensor:
        """f + L noise, ``(..., N, D)``."""
        noise = torch.empty_like(outputs).normal_(generator=make_generator(outputs, generator))
        return outputs + (self.cholesky(outputs) @ noise.unsqueeze(-1)).squeeze(-1)

    @staticmethod
    def _log_det(cholesky: Tensor) -> Tensor:
        return cholesky.diagonal(dim1=-2, dim2=-1).log().sum(-1)
