"""Counts from log rates."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent
from torch.distributions import Poisson as TorchPoisson

from credo.likelihoods.base import Likelihood, likelihoods
from credo.likelihoods.mixtures import bracket, make_generator, over_data
from credo.likelihoods.target_checks import count_targets

TAIL = 12.0  # standard deviations; what lies beyond has less than 1e-12 of the mass


@likelihoods.register("poisson")
class Poisson(Likelihood):
    """p(y_d given f) = exp(y_d f_d - exp f_d) / y_d!, rate exp(f_d): targets ``(N,)`` for one
    output, ``(N, D)`` for several.

    The variance equals the mean given f; only the spread of f over posterior draws adds to it.
    Uncertainty is in nats, as for all discrete outcomes.
    """

    name: ClassVar[str] = "poisson"
    discrete: ClassVar[bool] = True
    metric_family: ClassVar[str] = "values"
    varying: ClassVar[str] = "counts that vary"

    def __init__(self) -> None:
        super().__init__()

    def forward(self, outputs: Tensor) -> Distribution:
        """``Poisson`` with batch shape ``(..., N)``; event shape ``()`` for one output, else
        ``(D,)``.
        """
        if outputs.shape[-1] == 1:
            return self.marginals(outputs.squeeze(-1))
        return Independent(self.marginals(outputs), 1, validate_args=False)

    def check_targets(self, y: Any) -> Tensor:
        """Counts as floats, ``(N,)`` or ``(N, D)``."""
        return count_targets(y, self.name)

    def num_outputs(self, y: Tensor) -> int:
        """One log rate per count."""
        return y.shape[1] if y.dim() > 1 else 1

    def _columns(self, outputs: Tensor, y: Tensor) -> Tensor:
        return (y.unsqueeze(-1) if outputs.shape[-1] == 1 else y).to(outputs.dtype)

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """sum_d y_d f_d - exp f_d - log y_d!, ``(..., N)``."""
        y = self._columns(outputs, y)
        return (y * outputs - outputs.exp() - torch.lgamma(y + 1.0)).sum(-1)

    def expected_log_prob(self, mean: Tensor, var: Tensor, y: Tensor) -> Tensor:
        """sum_d y_d mean_d - exp(mean_d + var_d / 2) - log y_d!, ``(..., N)``."""
        y = self._columns(mean, y)
        return (y * mean - torch.exp(mean + 0.5 * var) - torch.lgamma(y + 1.0)).sum(-1)

    def marginals(self, outputs: Tensor) -> Distribution:
        """``Poisson`` with batch shape ``(..., N, D)``."""
        return TorchPoisson(outputs.exp(), validate_args=False)

    def marginal_cdf(self, outputs: Tensor, y: Tensor) -> Tensor:
        """P(Y_d <= y_d given f) = Q(floor(y_d) + 1, exp f_d), the upper incomplete gamma function;
        0 below 0.
        """
        k = y.to(outputs.dtype).floor()
        cdf = torch.special.gammaincc(
            *torch.broadcast_tensors(k.clamp_min(0.0) + 1.0, outputs.exp())
        )
        return torch.where(k < 0, 0.0, cdf)

    def information(self, outputs: Tensor) -> Tensor:
        """The rate exp f on the diagonal: f is the natural parameter."""
        return torch.diag_embed(outputs.exp())

    def marginal_entropy(self, outputs: Tensor) -> Tensor:
        """-sum_k p_k log p_k of each dimension's mixture, ``(..., N, D)``, over the counts within
        12 deviations of some rate.

        Where all rates are large the sum takes every h-th count, h at most half the smallest
        deviation: for a smooth probability function the error of that is of order exp(-2 pi^2 4).
        """
        return over_data(self._enumerate, outputs, self._num_counts(outputs), -2)

    def _window(self, outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rate = outputs.detach().exp()
        lowest, highest = rate.amin(0), rate.amax(0)
        low = (lowest - TAIL * (lowest.sqrt() + 1.0)).clamp_min(0.0).floor()
        high = (highest + TAIL * (highest.sqrt() + 1.0)).ceil()
        # Below rate 64 the deviation is small and counts near the boundary 0 matter: sum them all.
        step = torch.where(lowest < 64.0, torch.ones_like(lowest), (0.5 * lowest.sqrt()).floor())
        return low, high, step

    def _num_counts(self, outputs: Tensor) -> int:
        low, high, step = self._window(outputs)
        return int(((high - low) / step).max()) + 1

    def _enumerate(self, outputs: Tensor) -> Tensor:
        low, _, step = self._window(outputs)
        index = torch.arange(self._num_counts(outputs), dtype=outputs.dtype, device=outputs.device)
        k = low + step * index.reshape(-1, *(1,) * low.dim())
        log_p = self.marginals(outputs).log_prob(k.unsqueeze(1))
        mixture = torch.logsumexp(log_p, 1) - math.log(outputs.shape[0])
        return (step * torch.special.entr(mixture.exp())).sum(0)

    def mixture_quantile(self, outputs: Tensor, q: float) -> Tensor:
        """The smallest count k with mixture cdf at least q, ``(N, D)``, by bisection over whole
        numbers.
        """
        mean, aleatoric, epistemic = self.mixture_moments(outputs)
        low, high = bracket(mean, aleatoric + epistemic, q)
        low, high = low.floor().clamp_min(0.0) - 1.0, high.ceil()  # cdf(low) < q <= cdf(high)
        while bool((high - low > 1.0).any()):
            middle = ((low + high) / 2.0).floor()
            below = self.mixture_cdf(outputs, middle) < q
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return high

    def sample(self, outputs: Tensor, generator: torch.Generator | int = 0) -> Tensor:
        """Counts as floats, ``(..., N)`` for one output, else ``(..., N, D)``."""
        y = torch.poisson(outputs.detach().exp(), generator=make_generator(outputs, generator))
        return y.squeeze(-1) if outputs.shape[-1] == 1 else y
