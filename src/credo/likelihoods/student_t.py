"""Real targets with heavy-tailed noise."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent
from torch.distributions import StudentT as TorchStudentT

from credo.likelihoods.base import likelihoods
from credo.likelihoods.continuous_likelihood import ContinuousLikelihood
from credo.likelihoods.mixtures import make_generator
from credo.likelihoods.positive_parameters import Fixed, add_positive, plain, positive
from credo.likelihoods.special import student_t_cdf


@likelihoods.register("student_t")
class StudentT(ContinuousLikelihood):
    """y = f + scale * t_df, variance scale^2 df / (df - 2): ``df`` > 2 and ``scale`` fixed, or
    learned where None.

    Learned values are ``log_df`` = log(df - 2), which starts at df = 5, and ``log_scale``. df above
    2 keeps the variance finite. With little data df is hardly determined, and it drifts upwards
    when there are no outliers.
    """

    name: ClassVar[str] = "student_t"
    log_size: ClassVar[str | None] = "log_scale"
    log_df: Tensor
    log_scale: Tensor

    def __init__(
        self,
        df: Fixed = None,
        scale: Fixed = None,
        num_outputs: int | None = None,
        initial_scale: float = 1.0,
    ) -> None:
        super().__init__(
            df=plain(df), scale=plain(scale), num_outputs=num_outputs, initial_scale=initial_scale
        )
        add_positive(self, "df", df, 5.0, num_outputs, floor=2.0)
        add_positive(self, "scale", scale, initial_scale, num_outputs)

    def df(self, outputs: Tensor) -> Tensor:
        """Degrees of freedom, ready to broadcast against the outputs."""
        return positive(self.log_df, outputs, floor=2.0)

    def scale(self, outputs: Tensor) -> Tensor:
        """The scale (not the deviation), ready to broadcast against the outputs."""
        return positive(self.log_scale, outputs)

    def forward(self, outputs: Tensor) -> Distribution:
        """Independent Student laws: batch shape ``(..., N)``, event shape ``(D,)``."""
        return Independent(self.marginals(outputs), 1, validate_args=False)

    def marginals(self, outputs: Tensor) -> Distribution:
        """``StudentT`` with batch shape ``(..., N, D)``."""
        return TorchStudentT(self.df(outputs), outputs, self.scale(outputs), validate_args=False)

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """sum_d -(df + 1)/2 log(1 + z^2/df) - log scale + log of the normaliser, z = (y - f)/scale:
        ``(..., N)``.
        """
        # Written out because torch's StudentT checks the values of df even when told not to, which
        # vmap and graph capture cannot do.
        df, scale = self.df(outputs), self.scale(outputs)
        z = (y.to(outputs.dtype) - outputs) / scale
        normaliser = (
            torch.lgamma(0.5 * (df + 1.0))
            - torch.lgamma(0.5 * df)
            - 0.5 * torch.log(math.pi * df)
            - torch.log(scale)
        )
        return (normaliser - 0.5 * (df + 1.0) * torch.log1p(z.square() / df)).sum(-1)

    def moments(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """f and scale^2 df / (df - 2), each ``(..., N, D)``."""
        df = self.df(outputs)
        variance = self.scale(outputs).square() * df / (df - 2.0)
        return outputs, variance.expand(torch.broadcast_shapes(variance.shape, outputs.shape))

    def marginal_cdf(self, outputs: Tensor, y: Tensor) -> Tensor:
        """P(Y_d <= y_d given f) through the incomplete beta function, ``(..., N, D)``."""
        z = (y.to(outputs.dtype) - outputs) / self.scale(outputs)
        return student_t_cdf(z, self.df(outputs))

    def entropy(self, outputs: Tensor) -> Tensor:
        """Closed form in digamma and log-beta functions, ``(..., N)``."""
        return self(outputs).entropy()

    def information(self, outputs: Tensor) -> Tensor:
        """(df + 1) / ((df + 3) scale^2) on the diagonal."""
        df = self.df(outputs)
        return torch.diag_embed(
            ((df + 1.0) / ((df + 3.0) * self.scale(outputs).square())).expand(outputs.shape)
        )

    def sample(self, outputs: Tensor, generator: torch.Generator | int = 0) -> Tensor:
        """Draws ``(..., N, D)`` by Bailey's polar form: sqrt(df (u^(-2/df) - 1)) cos(2 pi v) for
        uniform u and v.
        """
        generator = make_generator(outputs, generator)
        u, v = (torch.empty_like(outputs).uniform_(generator=generator) for _ in range(2))
        df = self.df(outputs)
        # expm1 keeps the digits of small radii; 1 - u lies in (0, 1], so its logarithm is finite.
        radius = (df * torch.expm1(-2.0 / df * torch.log1p(-u))).sqrt()
        return outputs + self.scale(outputs) * radius * torch.cos(2.0 * math.pi * v)
