"""Sparse variational dropout's family: independent Gaussians whose weights leave the network when
noise drowns them.

q(w) = N(mu, alpha mu^2) with alpha > 0 of any size, written additively as N(mu, sigma^2): the
gradient by mu is then free of the noise that alpha mu^2 would carry (Molchanov et al. 2017). log
alpha is held at 8 from above; from below it is free, since a bound there would hold a deviation
that starts small for ever. A weight with log alpha at the threshold or beyond is pruned: its mean
counts as zero, in training already, so that the rest of the network learns to do without.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution

from credo.core.seeds import Noise
from credo.posteriors.draw import Params
from credo.posteriors.family import families, gaussian_entropy
from credo.posteriors.mean_field import MeanField, MeanFieldDraw
from credo.posteriors.std_transform import NormalStats
from credo.priors import is_log_uniform
from credo.priors.mixing import log_uniform_kl

LIMIT = 8.0  # of log alpha
THRESHOLD = 3.0


@families.register("sparse_vd")
class SparseVD(MeanField):
    """A mean-field posterior that knows which of its weights are noise.

    ``marginals`` are those of q before pruning, on which the KL rests; ``mean`` has the pruned
    weights at zero. Beyond the threshold q is centred at zero and its true KL under the log-uniform
    prior is zero: the one counted is larger by at most 0.03 nats a weight.
    """

    name: ClassVar[str] = "sparse_vd"
    startable: ClassVar[bool] = False

    def __init__(
        self,
        shapes: Mapping[str, Sequence[int]],
        scale: str = "log",
        dtype: str = "float32",
        threshold: float = THRESHOLD,
    ) -> None:
        super().__init__(shapes, scale, dtype)
        self.threshold = threshold

    @classmethod
    def start(
        cls,
        values: Mapping[str, Tensor],
        init_std: float = 1e-2,
        scale: str = "log",
        threshold: float = THRESHOLD,
    ) -> SparseVD:
        """Means at ``values``, all standard deviations at ``init_std``."""
        family = super().start(values, init_std, scale)
        assert isinstance(family, SparseVD)
        family.threshold = threshold
        return family

    def log_alpha(self) -> Params:
        """log(sigma^2 / mu^2) of every weight, at most 8."""
        return self.layout.split(self.flat_log_alpha())

    def flat_log_alpha(self) -> Tensor:
        """The same in a row."""
        mean, std = self.flat_mean, self.std_transform.std(self.raw_std)
        log_std = self.std_transform.log_std(self.raw_std, std)
        return (
            2.0 * (log_std - mean.abs().clamp_min(torch.finfo(mean.dtype).tiny).log())
        ).clamp_max(LIMIT)

    @torch.no_grad()
    def keep_mask(self, threshold: float | None = None) -> Params:
        """True where log alpha is below the threshold."""
        return self.layout.split(
            self.flat_log_alpha() < (self.threshold if threshold is None else threshold)
        )

    def flat_std(self) -> Tensor:
        """Standard deviations, at most exp(4) times the mean."""
        return torch.minimum(
            self.std_transform.std(self.raw_std), self.flat_mean.abs() * math.exp(LIMIT / 2)
        )

    def flat_masked(self) -> Tensor:
        """Means, zero where pruned."""
        with torch.no_grad():
            keep = self.flat_log_alpha() < self.threshold
        return self.flat_mean * keep

    def std(self) -> Params:
        """Standard deviations by name."""
        return self.layout.split(self.flat_std())

    def mean(self) -> Params:
        """Means of the weights that are left, zeros elsewhere."""
        return self.layout.split(self.flat_masked())

    def marginals(self) -> tuple[Params, Params]:
        """Means as they are without pruning, and variances."""
        return self.layout.split(self.flat_mean), self.layout.split(self.flat_std() ** 2)

    def entropy(self) -> Tensor:
        """Of the Gaussians."""
        return gaussian_entropy(self._log_std().sum(), self.layout.numel)

    def _log_std(self) -> Tensor:
        return self.flat_std().clamp_min(torch.finfo(self.flat_mean.dtype).tiny).log()

    def kl_elementwise(self, prior: Mapping[str, Distribution]) -> Tensor | None:
        """Of log alpha alone under the log-uniform prior, so that weights at the limit feel nothing
        of it.
        """
        if not all(is_log_uniform(p) for p in prior.values()):
            return super().kl_elementwise(prior)
        return log_uniform_kl(self.flat_log_alpha()).sum()

    def times_root(self, jacobian: Tensor) -> Tensor:
        """J times the deviations."""
        return jacobian * self.flat_std()

    def log_prob(self, latents: Params) -> Tensor:
        """Sum of normal log densities around the pruned means."""
        return self._normal().log_prob(self.layout.join(latents)).sum(-1)

    def log_prob_each(self, latents: Params) -> Params:
        """The same, element by element."""
        return self.layout.split(self._normal().log_prob(self.layout.join(latents)))

    def _normal(self) -> torch.distributions.Normal:
        return torch.distributions.Normal(
            self.flat_masked(), self._log_std().exp(), validate_args=False
        )

    def begin(self, noise: Noise, fold: NormalStats | None = None) -> SparseVDDraw:
        """Nothing is drawn yet."""
        return SparseVDDraw(self, noise, None)

    @torch.no_grad()
    def monitor(self) -> dict[str, float]:
        """The share of weights that are pruned."""
        return {"sparsity": float((self.flat_log_alpha() >= self.threshold).double().mean())}

    def config(self) -> dict[str, Any]:
        """Shapes, scale, dtype and threshold."""
        return super().config() | {"threshold": self.threshold}


class SparseVDDraw(MeanFieldDraw):
    """One pass of a :class:`SparseVD`."""

    family: SparseVD

    def moments(self) -> tuple[Params, Params]:
        """Pruned means and variances by name, made once per pass."""
        if self._moments is None:
            family = self.family
            self._moments = family.mean(), family.layout.split(family.flat_std() ** 2)
        return self._moments

    def weights(self, names: Any) -> Params:
        """mean + std * eps."""
        family, names = self.family, tuple(names)
        if set(names) != set(family.names):
            return super().weights(names)
        eps = self.noise.normal(self._key(), (family.layout.numel,), family.flat_mean)
        return family.layout.split(torch.addcmul(family.flat_masked(), family.flat_std(), eps))
