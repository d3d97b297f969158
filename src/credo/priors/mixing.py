"""Mixing densities of the scale: w given lambda ~ N(0, lambda^2), and what becomes of w when lambda
is integrated out.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Gamma, Laplace, Normal, kl_divergence

from credo.core.errors import CredoError
from credo.core.registry import Registry
from credo.priors.exponential_integral import log_scaled_exp1

#: log of the constant c in p(w) = c / |w| for which KL[N(mu, sigma^2), p] -> 0 as sigma^2 / mu^2 ->
#: infinity:
#: E log|w| - 1/2 log(2 pi e sigma^2) at mu = 0, where E log|eps| = -(gamma + log 2) / 2.
LOG_UNIFORM = -0.5 * (1.0 + 0.57721566490153286061 + math.log(4.0 * math.pi))
#: Molchanov et al. 2017: the fit of -KL[N(mu, alpha mu^2), log-uniform] (eq. 14).
K1, K2, K3 = 0.63576, 1.87320, 1.48695


class Mixing(ABC):
    """One density of the scale.

    ``on`` is "variance" or "sd": which of the two ``density`` and ``log_density`` are over.
    """

    name: ClassVar[str]
    on: ClassVar[str]
    density: ClassVar[str]
    marginal: ClassVar[str]
    regulariser: ClassVar[str]
    proper: ClassVar[bool] = True
    arguments: ClassVar[tuple[str, ...]] = ("scale",)

    @abstractmethod
    def log_density(self, mixed: Tensor, scale: Any, df: Any) -> Tensor:
        """Log density of the variance or the sd, whichever is mixed."""

    @abstractmethod
    def draw(self, shape: torch.Size, scale: Tensor, df: Any) -> Tensor:
        """Standard deviations lambda of ``shape``, from torch's global generator."""

    @abstractmethod
    def log_prob(self, value: Tensor, scale: Tensor, df: Any) -> Tensor:
        """Log density of w, lambda integrated out."""

    def variance(self, scale: Tensor, df: Any) -> Tensor:
        """E[lambda^2], infinite where the tails are that heavy."""
        return torch.full_like(scale, math.inf)

    def kl(self, q: Normal, scale: Tensor, df: Any) -> Tensor:
        """KL[q, p] elementwise where a closed form is known; otherwise NotImplementedError, and
        credo samples.
        """
        raise NotImplementedError(
            f"no closed-form KL from a normal to the {self.name} scale mixture"
        )


def log_uniform_kl(log_alpha: Tensor) -> Tensor:
    """KL of N(mu, alpha mu^2) from c / |w|: 1/2 log(1 + 1/alpha) + k1 (1 - sigmoid(k2 + k3 log
    alpha)), 0 at alpha = infinity.

    A fit by Molchanov et al. 2017, within 0.01 nats of the integral for every alpha.
    """
    return 0.5 * torch.logaddexp(torch.zeros_like(log_alpha), -log_alpha) + K1 * torch.sigmoid(
        -K3 * log_alpha - K2
    )


#: The table of scale mixtures.
mixings: Registry[Mixing] = Registry("mixing density")


def _add(kind: type[Mixing]) -> type[Mixing]:
    mixings.register(kind.name)(kind())
    return kind


@_add
class DeltaMixing(Mixing):
    """A scale that is known: the normal."""

    name, on = "delta", "variance"
    density = "λ² = s²"
    marginal = "N(0, s²)"
    regulariser = "w² / (2 s²): L2, weight decay"

    def log_density(self, mixed: Tensor, scale: Any, df: Any) -> Tensor:
        """A point mass: infinite at scale^2, minus infinity elsewhere."""
        return torch.where(mixed == torch.as_tensor(scale) ** 2, math.inf, -math.inf)

    def draw(self, shape: torch.Size, scale: Tensor, df: Any) -> Tensor:
        """The scale itself."""
        return scale.expand(shape)

    def log_prob(self, value: Tensor, scale: Tensor, df: Any) -> Tensor:
        """log N(value; 0, scale^2)."""
        return Normal(torch.zeros_like(scale), scale, validate_args=False).log_prob(value)

    def variance(self, scale: Tensor, df: Any) -> Tensor:
        """scale^2."""
        return scale**2

    def kl(self, q: Normal, scale: Tensor, df: Any) -> Tensor:
        """Between two normals."""
        return kl_divergence(q, Normal(torch.zeros_like(scale), scale, validate_args=False))


@_add
class ExponentialMixing(Mixing):
    """An exponential variance: the Laplace."""

    name, on = "exponential", "variance"
    density = "λ² ~ Exp(mean 2 s²)"
    marginal = "Laplace(0, s)"
    regulariser = "|w| / s: L1, lasso"

    def log_density(self, mixed: Tensor, scale: Any, df: Any) -> Tensor:
        """-log(2 s^2) - variance / (2 s^2)."""
        mean = 2.0 * torch.as_tensor(scale) ** 2
        return -mean.log() - mixed / mean

    def draw(self, shape: torch.Size, scale: Tensor, df: Any) -> Tensor:
        """s sqrt(2 e), e ~ Exp(1)."""
        return scale * (2.0 * scale.new_empty(shape).exponential_()).sqrt()

    def log_prob(self, value: Tensor, scale: Tensor, df: Any) -> Tensor:
        """log Laplace(value; 0, scale)."""
        return Laplace(torch.zeros_like(scale), scale, validate_args=False).log_prob(value)

    def variance(self, scale: Tensor, df: Any) -> Tensor:
        """2 scale^2."""
        return 2.0 * scale**2

    def kl(self, q: Normal, scale: Tensor, df: Any) -> Tensor:
        """From a normal to a Laplace."""
        return kl_divergence(q, Laplace(torch.zeros_like(scale), scale, validate_args=False))


@_add
class InverseGammaMixing(Mixing):
    """An inverse-gamma variance: Student's t, as in the relevance vector machine."""

    name, on = "inverse_gamma", "variance"
    density = "λ² ~ s² IG(ν/2, ν/2)"
    marginal = "s · Student-t(ν)"
    regulariser = "(ν + 1)/2 · log(1 + w² / (ν s²)): the relevance vector machine"
    arguments = ("scale", "df")

    def log_density(self, mixed: Tensor, scale: Any, df: Any) -> Tensor:
        """Log density of IG(df/2, df s^2/2)."""
        shape, rate = (
            torch.as_tensor(df) / 2.0,
            torch.as_tensor(df) / 2.0 * torch.as_tensor(scale) ** 2,
        )
        return shape * rate.log() - torch.lgamma(shape) - (shape + 1.0) * mixed.log() - rate / mixed

    def draw(self, shape: torch.Size, scale: Tensor, df: Any) -> Tensor:
        """s sqrt((df/2) / g), g ~ Gamma(df/2, 1)."""
        half = (df / 2.0).expand(shape)
        return (
            scale * (half / Gamma(half, torch.ones_like(half), validate_args=False).sample()).sqrt()
        )

    def log_prob(self, value: Tensor, scale: Tensor, df: Any) -> Tensor:
        """log Student-t(value; df, 0, scale), spelt out because torch's class copies constants to
        the device whenever one is made.
        """
        norm = (
            torch.lgamma((df + 1.0) / 2.0)
            - torch.lgamma(df / 2.0)
            - 0.5 * (math.pi * df).log()
            - scale.log()
        )
        limit = 1e-3 * math.sqrt(
            torch.finfo(value.dtype).max
        )  # beyond it the square would overflow
        return norm - (df + 1.0) / 2.0 * torch.log1p((value / scale).clamp(-limit, limit) ** 2 / df)

    def variance(self, scale: Tensor, df: Any) -> Tensor:
        """s^2 df / (df - 2) for df > 2, else infinite."""
        return torch.where(df > 2.0, scale**2 * df / (df - 2.0), math.inf)


@_add
class LogUniformMixing(Mixing):
    """A log-uniform sd: p(w) = c / |w|, improper, without a scale."""

    name, on = "log_uniform", "sd"
    density = "p(λ) ∝ 1/λ, improper"
    marginal = "∝ 1/|w|, improper"
    regulariser = "log |w|: sparse variational dropout"
    proper = False
    arguments = ()

    def log_density(self, mixed: Tensor, scale: Any, df: Any) -> Tensor:
        """log(2c) - log sd: the integral of N(w; 0, sd^2) / sd over sd is 1 / (2|w|)."""
        return LOG_UNIFORM + math.log(2.0) - mixed.log()

    def draw(self, shape: torch.Size, scale: Tensor, df: Any) -> Tensor:
        """An improper density has no draws: always an error."""
        raise CredoError(
            "The log_uniform prior is improper and cannot be sampled; give the parameter a proper "
            "prior, e.g. horseshoe()."
        )

    def log_prob(self, value: Tensor, scale: Tensor, df: Any) -> Tensor:
        """log c - log|value|, held at the smallest normal number so that a weight at zero costs a
        finite amount.
        """
        return LOG_UNIFORM - value.abs().clamp(min=torch.finfo(value.dtype).tiny).log()

    def kl(self, q: Normal, scale: Tensor, df: Any) -> Tensor:
        """As ``log_uniform_kl``, with alpha = sigma^2 / mu^2, finite at mu = 0."""
        return log_uniform_kl(
            2.0 * (q.scale.log() - q.loc.abs().clamp(min=torch.finfo(q.loc.dtype).tiny).log())
        )


@_add
class HalfCauchyMixing(Mixing):
    """A half-Cauchy sd: the horseshoe."""

    name, on = "half_cauchy", "sd"
    density = "λ ~ C⁺(0, s)"
    marginal = "(2π³s²)^(-1/2) exp(x) E₁(x), x = w²/(2 s²): the horseshoe"
    regulariser = "between -log log(1 + 4 s²/w²) and -log log(1 + 2 s²/w²), up to constants"

    def log_density(self, mixed: Tensor, scale: Any, df: Any) -> Tensor:
        """log(2 / (pi s)) - log(1 + sd^2 / s^2)."""
        s = torch.as_tensor(scale)
        return math.log(2.0 / math.pi) - s.log() - torch.log1p((mixed / s) ** 2)

    def draw(self, shape: torch.Size, scale: Tensor, df: Any) -> Tensor:
        """s |c|, c ~ Cauchy."""
        return scale * scale.new_empty(shape).cauchy_().abs()

    def log_prob(self, value: Tensor, scale: Tensor, df: Any) -> Tensor:
        """The closed form, |w/s| held where its square is a normal number: the pole at zero is a
        finite number.
        """
        limits = torch.finfo(value.dtype)
        ratio = (
            (value / scale).abs().clamp(2.0 * math.sqrt(limits.tiny), 0.5 * math.sqrt(limits.max))
        )
        return log_scaled_exp1(0.5 * ratio**2) - 0.5 * math.log(2.0 * math.pi**3) - scale.log()
