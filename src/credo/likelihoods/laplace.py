"""Real targets with Laplace noise: absolute instead of squared errors."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent
from torch.distributions import Laplace as TorchLaplace

from credo.likelihoods.base import likelihoods
from credo.likelihoods.continuous_likelihood import ContinuousLikelihood
from credo.likelihoods.mixtures import make_generator
from credo.likelihoods.positive_parameters import Fixed, add_positive, plain, positive


@likelihoods.register("laplace")
class Laplace(ContinuousLikelihood):
    """p(y_d given f) = exp(-|y_d - f_d| / b) / (2 b), variance 2 b^2: ``scale`` b fixed, or learned
    as ``log_scale`` when None.

    f is then the conditional median. The kink at y = f leaves no second derivative; curvature
    methods use the Fisher information.
    """

    name: ClassVar[str] = "laplace"
    log_size: ClassVar[str | None] = "log_scale"
    log_scale: Tensor

    def __init__(
        self, scale: Fixed = None, num_outputs: int | None = None, initial_scale: float = 1.0
    ) -> None:
        super().__init__(scale=plain(scale), num_outputs=num_outputs, initial_scale=initial_scale)
        add_positive(self, "scale", scale, initial_scale, num_outputs)

    def scale(self, outputs: Tensor) -> Tensor:
        """b, in the type of the outputs and ready to broadcast against them."""
        return positive(self.log_scale, outputs)

    def forward(self, outputs: Tensor) -> Distribution:
        """Independent Laplace laws: batch shape ``(..., N)``, event shape ``(D,)``."""
        return Independent(self.marginals(outputs), 1, validate_args=False)

    def marginals(self, outputs: Tensor) -> Distribution:
        """``Laplace`` with batch shape ``(..., N, D)``."""
        return TorchLaplace(outputs, self.scale(outputs), validate_args=False)

    def expected_log_prob(self, mean: Tensor, var: Tensor, y: Tensor) -> Tensor:
        """sum_d -log(2 b) - E|y - f| / b, the mean of a folded normal: s sqrt(2/pi) exp(-d^2/2s^2)
        + d erf(d / (s sqrt 2)).
        """
        std = var.clamp_min(torch.finfo(var.dtype).tiny).sqrt()
        gap = y.to(mean.dtype) - mean
        z = gap / std
        folded = std * math.sqrt(2.0 / math.pi) * torch.exp(-0.5 * z.square()) + gap * torch.erf(
            z * math.sqrt(0.5)
        )
        scale = self.scale(mean)
        return (-torch.log(2.0 * scale) - folded / scale).sum(-1)

    def entropy(self, outputs: Tensor) -> Tensor:
        """sum_d 1 + log(2 b_d), ``(..., N)``."""
        return self(outputs).entropy()

    def information(self, outputs: Tensor) -> Tensor:
        """1 / b^2 on the diagonal: the mean square of the score, which has a value where second
        derivatives have none.
        """
        return torch.diag_embed(self.scale(outputs).pow(-2).expand(outputs.shape))

    def sample(self, outputs: Tensor, generator: torch.Generator | int = 0) -> Tensor:
        """Draws ``(..., N, D)``: the difference of two exponentials."""
        generator = make_generator(outputs, generator)
        first, second = (
            torch.empty_like(outputs).exponential_(generator=generator) for _ in range(2)
        )
        return outputs + self.scale(outputs) * (first - second)
