"""Real targets with Gaussian noise of one deviation."""

from __future__ import annotations

import math
from typing import ClassVar, Self

import torch
from torch import Tensor, nn
from torch.distributions import Normal

from credo.likelihoods.base import likelihoods
from credo.likelihoods.fisher_information import NormalNoiseTerms
from credo.likelihoods.mixtures import make_generator
from credo.likelihoods.normal_noise import NormalNoise
from credo.likelihoods.positive_parameters import Fixed, add_positive, plain, positive


@likelihoods.register("gaussian")
class Gaussian(NormalNoise):
    """y = f + std * noise, noise ~ N(0, 1): ``std`` fixed (one number, or one per output), or
    learned when None.

    Learned noise is the parameter ``log_std``, one for all outputs, or one each when
    ``num_outputs`` is given; it starts at ``initial_std``. One deviation serves all inputs: where
    noise varies with x use ``Heteroscedastic``, with outliers ``StudentT``.
    """

    name: ClassVar[str] = "gaussian"
    log_size: ClassVar[str | None] = "log_std"
    log_std: Tensor

    def __init__(
        self, std: Fixed = None, num_outputs: int | None = None, initial_std: float = 1.0
    ) -> None:
        super().__init__(std=plain(std), num_outputs=num_outputs, initial_std=initial_std)
        add_positive(self, "std", std, initial_std, num_outputs)

    def as_gaussian(self) -> Self:
        return self

    def std(self, outputs: Tensor) -> Tensor:
        """The noise deviation, in the type of the outputs and ready to broadcast against them."""
        return positive(self.log_std, outputs)

    def marginals(self, outputs: Tensor) -> Normal:
        """``Normal`` with batch shape ``(..., N, D)``."""
        return Normal(outputs, self.std(outputs), validate_args=False)

    def expected_log_prob(self, mean: Tensor, var: Tensor, y: Tensor) -> Tensor:
        """log N(y; mean, std^2) - sum_d var_d / (2 std_d^2), ``(..., N)``."""
        return self.log_prob(mean, y) - (0.5 * var / self.std(mean).square()).sum(-1)

    def information(self, outputs: Tensor) -> Tensor:
        """1 / std^2 on the diagonal."""
        return torch.diag_embed(self.std(outputs).pow(-2).expand(outputs.shape))

    def noise_terms(self, nll: float, num_data: int, num_outputs: int) -> NormalNoiseTerms | None:
        """From nll = sum over data and outputs of log s + 1/2 log 2 pi + r^2 / (2 s^2)."""
        if not isinstance(self.log_std, nn.Parameter) or self.log_std.numel() > 1:
            return None
        count = num_data * num_outputs
        constant = count * (float(self.log_std.detach().double()) + 0.5 * math.log(2.0 * math.pi))
        return NormalNoiseTerms(count, 2.0 * (nll - constant))

    def widen_noise(self, factor: float) -> None:
        """Where it is one number that is learned."""
        with torch.no_grad():
            self.log_std += math.log(factor)

    def sample(self, outputs: Tensor, generator: torch.Generator | int = 0) -> Tensor:
        noise = torch.empty_like(outputs).normal_(generator=make_generator(outputs, generator))
        return outputs + self.std(outputs) * noise
