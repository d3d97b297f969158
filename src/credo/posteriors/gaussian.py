"""What jointly Gaussian families share: marginals, entropy, KL, and the covariance of linear
functions of their weights.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Self

from torch import Tensor
from torch.distributions import Distribution, Normal, kl_divergence, register_kl

from credo.posteriors.draw import Params
from credo.posteriors.family import Family
from credo.posteriors.jacobian import Jacobian, joined
from credo.priors import Flat


@register_kl(Normal, Flat)
def _kl_normal_flat(q: Normal, p: Flat) -> Tensor:
    """-H[q]: the flat prior has density 1, so this is a KL only up to a constant."""
    return -q.entropy()


class Gaussian(Family):
    """A jointly Gaussian family."""

    factored: ClassVar[bool] = (
        False  # whether ``output_covariance`` makes do with a Jacobian's factors
    )

    def as_gaussian(self) -> Self:
        return self

    @abstractmethod
    def marginals(self) -> tuple[Params, Params]:
        """Mean and variance of every single weight, by name."""

    def std(self) -> Params:
        """Square roots of the variances."""
        return {name: var.sqrt() for name, var in self.marginals()[1].items()}

    def unpruned_mean(self) -> Params:
        return self.marginals()[0]

    @abstractmethod
    def entropy(self) -> Tensor:
        """Differential entropy of the joint distribution in nats."""

    def kl_elementwise(self, prior: Mapping[str, Distribution]) -> Tensor | None:
        """sum_i (KL[N(m_i, v_i), p] + h_i) - H[q] with h the entropy of one normal: marginals and
        entropy are all it takes, and torch's own table of KLs gives the terms.
        """
        means, variances = self.marginals()
        total = -self.entropy()
        for name in self.names:
            q = Normal(means[name], variances[name].sqrt(), validate_args=False)
            try:
                total = total + (kl_divergence(q, prior[name]) + q.entropy()).sum()
            except NotImplementedError:
                return None
        return total

    def written(self, name: str, places: int | None) -> int:
        """Numbers of one derivative by a parameter that ``output_covariance`` writes out.

        ``places``: at which an example uses the parameter, None where it has no factors, which may
        be all that is needed.
        """
        shape = self.shapes[name]
        return sum(shape) if self.factored and places == 1 else shape.numel()

    @abstractmethod
    def times_root(self, jacobian: Tensor) -> Tensor:
        """J R for a Jacobian ``(N, K, P)`` by the parameters in the order of ``names``,
        where R R^T is the covariance.
        """

    def output_covariance(self, jacobian: Jacobian) -> Tensor:
        """J C J^T ``(N, K, K)``: how the outputs of a network linear in these parameters vary."""
        root = self.times_root(joined(jacobian, self.names))
        return root @ root.mT

    def output_variance(self, jacobian: Jacobian) -> Tensor:
        """The diagonal of ``output_covariance``, ``(N, K)``."""
        return self.times_root(joined(jacobian, self.names)).square().sum(-1)


def gaussian_entropy(log_det_tril: Tensor, numel: int) -> Tensor:
    """Entropy of a Gaussian from the log determinant of a triangular factor of its covariance."""
    return log_det_tril + 0.5 * numel * (1.0 + math.log(2.0 * math.pi))
