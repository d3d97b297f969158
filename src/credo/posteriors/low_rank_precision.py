"""Low rank in the precision: a wide Gaussian that is narrower along a few directions, those the
data speak about.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from credo.core.seeds import Noise
from credo.core.sites import FlatLayout
from credo.posteriors.draw import Draw, Params
from credo.posteriors.family import Gaussian, families, gaussian_entropy


@families.register("low_rank_precision")
class LowRankPrecision(Gaussian):
    """Precision D^(1/2) (I + V L V^T) D^(1/2): V (P, K) orthonormal, L >= 0, D the precision of
    everything else.

    What Laplace with the K largest eigenvalues of the curvature gives. Everything takes O(P K):
    with r = (1 + L)^(-1/2) - 1 a draw is mean + D^(-1/2) (eps + V (r * V^T eps)).
    """

    name: ClassVar[str] = "low_rank_precision"

    def __init__(
        self, shapes: Mapping[str, Sequence[int]], rank: int = 1, dtype: str = "float32"
    ) -> None:
        super().__init__(shapes)
        self.rank, self.layout = rank, FlatLayout(self.shapes)
        numel, kind = self.layout.numel, getattr(torch, dtype)
        self.flat_mean = nn.Parameter(torch.zeros(numel, dtype=kind))
        self.log_std = nn.Parameter(torch.zeros(numel, dtype=kind))  # of D^(-1/2)
        self.basis = nn.Parameter(torch.zeros(numel, rank, dtype=kind))
        self.log_gain = nn.Parameter(torch.zeros(rank, dtype=kind))  # log(1 + L)

    @classmethod
    def of(
        cls, values: Mapping[str, Tensor], precision: Tensor, factor: Tensor
    ) -> LowRankPrecision:
        """Means ``values`` and the precision diag(``precision``) + factor factor^T, ``factor``
        ``(P, K)``.
        """
        layout = FlatLayout({name: value.shape for name, value in values.items()})
        flat = layout.join(values).detach()
        white = factor.double() * precision.double().rsqrt().unsqueeze(-1)
        basis, singular, _ = torch.linalg.svd(white, full_matrices=False)
        family = cls(layout.shapes, factor.shape[1], str(flat.dtype).removeprefix("torch.")).to(
            flat.device
        )
        with torch.no_grad():
            family.flat_mean.copy_(flat)
            family.log_std.copy_(-0.5 * precision.log())
            family.basis.copy_(basis)
            family.log_gain.copy_(torch.log1p(singular.square()))
        return family

    def _shrink(self) -> Tensor:
        """(1 + L)^(-1/2) - 1."""
        return torch.expm1(-0.5 * self.log_gain)

    def begin(self, noise: Noise, fold: Any = None) -> LowRankPrecisionDraw:
        """Draw eps of the whole vector."""
        return LowRankPrecisionDraw(self, noise)

    def mean(self) -> Params:
        """The means."""
        return self.layout.split(self.flat_mean)

    def marginals(self) -> tuple[Params, Params]:
        """Means, and D^-1 (1 - sum_k V_k^2 L_k / (1 + L_k))."""
        lost = self.basis.square() @ -torch.expm1(-self.log_gain)
        return self.mean(), self.layout.split(
            (2.0 * self.log_std).exp() * (1.0 - lost).clamp_min(0.0)
        )

    def entropy(self) -> Tensor:
        """-1/2 log det of the precision + P/2 log 2 pi e."""
        return gaussian_entropy(self.log_std.sum() - 0.5 * self.log_gain.sum(), self.layout.numel)

    def times_root(self, jacobian: Tensor) -> Tensor:
        """J D^(-1/2) (I + V r V^T)."""
        white = jacobian * self.log_std.exp()
        return white + ((white @ self.basis) * self._shrink()) @ self.basis.mT

    def log_prob(self, latents: Params) -> Tensor:
        """Joint Gaussian log density."""
        white = (self.layout.join(latents) - self.flat_mean) * (-self.log_std).exp()
        along = white @ self.basis
        square = white.square().sum(-1) + (along.square() * torch.expm1(self.log_gain)).sum(-1)
        return -0.5 * square - (self.entropy() - 0.5 * self.layout.numel)

    def config(self) -> dict[str, Any]:
        """Shapes, rank and dtype."""
        return super().config() | {
            "rank": self.rank,
            "dtype": str(self.flat_mean.dtype).removeprefix("torch."),
        }


class LowRankPrecisionDraw(Draw):
    """One pass of a :class:`LowRankPrecision`."""

    def __init__(self, family: LowRankPrecision, noise: Noise) -> None:
        eps = noise.normal(family.names[0], (family.layout.numel,), family.flat_mean)
        white = eps + ((eps @ family.basis) * family._shrink()) @ family.basis.mT
        self.whole = family.layout.split(family.flat_mean + family.log_std.exp() * white)

    def weights(self, names: Iterable[str]) -> Params:
        """mean + D^(-1/2) (eps + V (r * V^T eps))."""
        return {name: self.whole[name] for name in names}
