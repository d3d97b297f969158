"""What likelihoods with independent normal noise share."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, Normal

from credo.likelihoods.base import Likelihood
from credo.likelihoods.continuous_likelihood import ContinuousLikelihood


class NormalNoise(ContinuousLikelihood):
    """y_d ~ N(m_d, s_d^2), independent given f: a subclass says what m and s are. Abstract."""

    @abstractmethod
    def marginals(self, outputs: Tensor) -> Normal:
        """``Normal`` with batch shape ``(..., N, D)``."""

    def forward(self, outputs: Tensor) -> Distribution:
        """Independent normals: batch shape ``(..., N)``, event shape ``(D,)``."""
        return Independent(self.marginals(outputs), 1, validate_args=False)

    def entropy(self, outputs: Tensor) -> Tensor:
        """sum_d 1/2 log(2 pi e s_d^2), ``(..., N)``."""
        return self(outputs).entropy()

    def soft_targets(
        self, outputs: Tensor, teacher: Likelihood, generator: torch.Generator | int = 0
    ) -> Tensor:
        """Mean and total variance of the teacher's mixture, ``(N, 2, D)``: all that a normal
        student can learn; nothing is drawn.
        """
        mean, aleatoric, epistemic = teacher.mixture_moments(outputs)
        return torch.stack([mean, aleatoric + epistemic], -2)

    def soft_log_prob(self, outputs: Tensor, soft: Tensor) -> Tensor:
        """E log N(y; m, s^2) = sum_d log N(M_d; m_d, s_d^2) - V_d / (2 s_d^2) for y of mean M and
        variance V: ``(..., N)``, exact.

        It is largest at m = M, s^2 = V, whatever the shape of y's distribution.
        """
        mean, var = soft.to(outputs.dtype).unbind(-2)
        normal = self.marginals(outputs)
        return (normal.log_prob(mean) - 0.5 * var / normal.scale.square()).sum(-1)
