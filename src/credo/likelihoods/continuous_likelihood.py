"""What likelihoods of continuous targets share."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Self

from torch import Tensor, nn

from credo.likelihoods import mixtures
from credo.likelihoods.base import Likelihood, likelihoods
from credo.likelihoods.target_checks import real_targets


class ContinuousLikelihood(Likelihood):
    """Real targets ``(N, D)``: variance as uncertainty, quantiles by root finding, entropy by
    quadrature. Abstract.
    """

    discrete: ClassVar[bool] = False
    metric_family: ClassVar[str] = "values"
    #: Where the density is positive.
    support: ClassVar[tuple[float, float]] = (-math.inf, math.inf)
    #: The parameter that is the logarithm of the noise's size, where outputs lie at y itself.
    log_size: ClassVar[str | None] = None

    @property
    def learns_size(self) -> bool:
        """Whether it can serve targets of any scale: the size of its noise is not given."""
        return self.log_size in self._parameters

    def in_units(self, std: Tensor) -> Self:
        """The likelihood of targets ``std`` ``(D,)`` times as large, given outputs that are."""
        other = self.frozen()
        for table in (other._parameters, other._buffers):
            log_size = None if self.log_size is None else table.get(self.log_size)
            if log_size is not None:
                log_std = std.log().to(log_size)
                log_std = log_std if len(log_std) > 1 else log_std.squeeze(0)
                table[str(self.log_size)] = nn.Parameter(log_size + log_std, False)
        return other

    def check_targets(self, y: Any) -> Tensor:
        """Finite floats ``(N, D)``."""
        return real_targets(y, self.name)

    def num_outputs(self, y: Tensor) -> int:
        """D outputs, times the latents each target needs."""
        return (y.shape[1] if y.dim() > 1 else 1) * (self.latents_per_target or 1)

    def marginal_entropy(self, outputs: Tensor) -> Tensor:
        """-integral p log p per dimension of the mixture over axis 0, by Gauss-Legendre panels:
        ``(..., N, D)``.
        """

        def part(outputs: Tensor) -> Tensor:
            mean, variance = self.moments(outputs)
            return mixtures.panel_entropy(
                self.marginals(outputs), mean, variance.sqrt(), *self.support
            )

        return mixtures.over_data(part, outputs, mixtures.panel_grid(outputs.shape[0]), -2)

    def mixture_quantile(self, outputs: Tensor, q: float) -> Tensor:
        """The y_d with mixture cdf q, ``(N, D)``, searched between the bounds that mean and
        variance give.
        """
        mean, aleatoric, epistemic = self.mixture_moments(outputs)
        low, high = mixtures.bracket(mean, aleatoric + epistemic, q)
        return mixtures.invert(
            lambda y: self.mixture_cdf(outputs, y),
            low.clamp(*self.support),
            high.clamp(*self.support),
            q,
        )

    def student(self) -> Likelihood:
        """Heteroscedastic for targets on the whole line: what a teacher does not know varies with
        x, and so must a student's noise.
        """
        whole = self.support == (-math.inf, math.inf)
        return likelihoods["heteroscedastic"]() if whole else super().student()

    def uncertainty(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Aleatoric and epistemic variance of y, each ``(N, D)``; their sum is the total
        variance.
        """
        _, aleatoric, epistemic = self.mixture_moments(outputs)
        return aleatoric, epistemic
