"""Structured Bayesian pruning's family: every unit is multiplied by a truncated log-normal, and
units drowned by their noise leave.

s = exp(t) with t ~ N(mu, sigma^2) truncated to [a, b] = [-20, 0], under the prior t ~ Uniform(a,
b), which is a log-uniform one for s that is proper. With alpha = (a - mu) / sigma, beta = (b - mu)
/ sigma and Z = Phi(beta) - Phi(alpha),

    KL = log(b - a) - log(sigma sqrt(2 pi e)) - log Z - (alpha phi(alpha) - beta phi(beta)) / (2 Z),
    E[s^k] = exp(k mu + k^2 sigma^2 / 2) (Phi(beta - k sigma) - Phi(alpha - k sigma)) / Z.

A weight is W s with W free, so q depends on W and E[s] only through their product: E[w] = W E[s] is
what is stored, and it starts at the network's own values whatever E[s] is. SNR = E[s] / sd[s]; a
unit with SNR < 1 is pruned: its factor counts as zero, in training already, so that the rest of the
network learns to do without.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from credo.core.linear_map import LinearMap
from credo.posteriors.draw import Params
from credo.posteriors.family import families
from credo.posteriors.multiplicative import Multiplicative, Places
from credo.priors import is_log_uniform

LOW, HIGH = -20.0, 0.0  # of log s: from a unit that is off to one that is on
LOG_STD = (-8.0, 3.0)  # of log sigma; at the upper end q is the prior but for a hundredth of a nat
START = -1.0  # of mu: far from the truncation, which small noise then does not feel
THRESHOLD = 1.0  # of the signal-to-noise ratio
_LEAST = 1e-8  # probability in a tail that a uniform number of single precision can tell from none


@families.register("structured_bp")
class StructuredNoise(Multiplicative):
    """One mu and one sigma per unit.

    Both are kept in their ranges by sigmoids, so that mu never leaves [a, b] and no tail is ever
    needed.

    Fails where units are few and all are needed: there is nothing to prune, and the noise is that
    of Gaussian dropout.
    """

    name: ClassVar[str] = "structured_bp"
    kind: ClassVar[str] = "uniform"

    def __init__(
        self,
        shapes: Mapping[str, Sequence[int]],
        places: Places | Mapping[str, Any],
        dtype: str = "float32",
        threshold: float = THRESHOLD,
    ) -> None:
        super().__init__(shapes, places, dtype)
        self.threshold = threshold
        zeros = [
            torch.zeros(self.unit_shape(name), dtype=self.flat_mean.dtype) for name in self.noised
        ]
        self.raw_mean = nn.ParameterList([nn.Parameter(zero.clone()) for zero in zeros])
        self.raw_std = nn.ParameterList([nn.Parameter(zero.clone()) for zero in zeros])

    @classmethod
    def start(
        cls,
        values: Mapping[str, Tensor],
        places: Places,
        rates: Mapping[str, float],
        threshold: float = THRESHOLD,
    ) -> StructuredNoise:
        """E[w] at ``values``; sigma such that V[s] / E[s]^2 = exp(sigma^2) - 1 is p / (1 - p),
        before truncation.
        """
        family = cls.begun(values, places, threshold=threshold)
        with torch.no_grad():
            for name, mean, std in zip(family.noised, family.raw_mean, family.raw_std, strict=True):
                sigma = math.sqrt(-math.log1p(-rates[name]))
                mean.fill_(_unsquash(START, LOW, HIGH))
                std.fill_(_unsquash(math.log(sigma), *LOG_STD))
        return family

    def location(self, name: str) -> Tensor:
        """mu of every unit of a place."""
        return _squash(self.raw_mean[self.noised.index(name)], LOW, HIGH)

    def sigma(self, name: str) -> Tensor:
        """sigma of every unit of a place."""
        return _squash(self.raw_std[self.noised.index(name)], *LOG_STD).exp()

    def log_moments(self, name: str) -> tuple[Tensor, Tensor]:
        """log E[s], and log(E[s^2] / E[s]^2), in which mu has cancelled."""
        mu, sigma = self.location(name), self.sigma(name)
        none, one, two = (_log_between(mu, sigma, k) for k in range(3))
        return mu + 0.5 * sigma**2 + one - none, (sigma**2 + two - 2 * one + none).clamp_min(
            torch.finfo(mu.dtype).tiny
        )

    def excess(self, name: str) -> Tensor:
        """V[s] / E[s]^2 of every unit: the variance of a factor whose mean is one."""
        return torch.expm1(self.log_moments(name)[1])

    def snr(self, name: str) -> Tensor:
        """E[s] / sd[s] of every unit."""
        return self.excess(name).rsqrt()

    @torch.no_grad()
    def units(self, name: str, threshold: float | None = None) -> Tensor:
        """True for the units of a place that stay."""
        return self.snr(name) >= (self.threshold if threshold is None else threshold)

    def scales(self) -> Params:
        """E[s] of every unit by place, zero where pruned; W is the stored mean divided by it."""
        return {name: self.log_moments(name)[0].exp() * self.units(name) for name in self.noised}

    def factor(self, name: str, raw: Tensor, align: Callable[[Tensor], Tensor]) -> Tensor:
        """s / E[s] by the inverse of the distribution function, from the nearer tail; zero where
        pruned.
        """
        mu, sigma = self.location(name), self.sigma(name)
        ends = torch.special.ndtr((LOW - mu) / sigma), torch.special.ndtr((mu - HIGH) / sigma)
        below, above = (align(end) for end in ends)
        lower = raw < 0.5
        mass = torch.where(lower, raw, 1 - raw) * (1 - below - above) + torch.where(
            lower, below, above
        )
        x = torch.special.ndtri(mass.clamp_min(_LEAST)) * torch.where(lower, 1.0, -1.0).to(
            raw.dtype
        )
        log_s = (align(mu) + align(sigma) * x).clamp(LOW, HIGH)
        return torch.exp(log_s - align(self.log_moments(name)[0])) * align(self.units(name))

    def mean(self) -> Params:
        """E[w] = W E[s], zero for pruned units; masks of dropout modules likewise."""
        values, units = (
            self.layout.split(self.flat_mean),
            {name: self.units(name) for name in self.noised},
        )
        scaled = {
            n: v * self.over(n, units[n]) if n in self.places.axes else v for n, v in values.items()
        }
        return scaled | {n: units[n].to(self.flat_mean.dtype) for n in self.places.masks}

    def std(self) -> Params:
        """Standard deviations of single weights that read noisy units."""
        mean = self.mean()
        return {n: mean[n].abs() * self.over(n, self.excess(n).sqrt()) for n in self.places.axes}

    def keep_mask(self, threshold: float | None = None) -> Params:
        """True where a weight stays, in its shape: those that read a unit below ``threshold`` go.

        What training has pruned is zero anyway.
        """
        out = {}
        for weight, source in self.noise_of.items():
            stays = (
                self.to_units(weight, self.units(source, threshold).to(self.flat_mean.dtype)) > 0
            )
            out[weight] = stays.expand(self.shapes[weight]).clone()
        return out

    def moments(
        self, op: LinearMap, mean: Tensor, var: Tensor, w: str, b: str | None
    ) -> tuple[Tensor, Tensor]:
        """As of any noise on inputs; a pruned mask lets nothing through, variance included."""
        out, out_var = super().moments(op, mean, var, w, b)
        return (out, out_var * self.mean()[w]) if op.is_product else (out, out_var)

    def kl_elementwise(self, prior: Mapping[str, Distribution]) -> Tensor | None:
        """The closed form, summed over units; under any prior but the log-uniform None, since the
        weights then have no such split.
        """
        own = [
            prior[name] for name in self.layout.shapes
        ]  # masks of dropout modules have no prior of their own
        if not all(is_log_uniform(p) for p in own):
            return None
        total = self.flat_mean.new_zeros(())
        for name in self.noised:
            total = total + self.unit_kl(name).sum()
        return total

    def unit_kl(self, name: str) -> Tensor:
        """KL[q(s), p(s)] of every unit of a place, of q before pruning."""
        mu, sigma = self.location(name), self.sigma(name)
        alpha, beta = (LOW - mu) / sigma, (HIGH - mu) / sigma
        log_z = _log_between(mu, sigma, 0)
        edge = (_edge(alpha) - _edge(beta)) * torch.exp(-log_z)
        return (
            math.log(HIGH - LOW)
            - 0.5 * math.log(2 * math.pi * math.e)
            - sigma.log()
            - log_z
            - 0.5 * edge
        )

    def rate_params(self) -> list[nn.Parameter]:
        """What the noise is made from."""
        return [*self.raw_mean, *self.raw_std]

    def monitor(self) -> dict[str, float]:
        """How many units of every place stay."""
        return {f"units/{name}": float(self.units(name).sum()) for name in self.noised}

    def config(self) -> dict[str, Any]:
        """Places and threshold."""
        return super().config() | {"threshold": self.threshold}


def _squash(raw: Tensor, low: float, high: float) -> Tensor:
    return low + (high - low) * torch.sigmoid(raw)


def _unsquash(value: float, low: float, high: float) -> float:
    share = min(max((value - low) / (high - low), 1e-6), 1 - 1e-6)
    return math.log(share) - math.log1p(-share)


def _log_between(mu: Tensor, sigma: Tensor, power: int) -> Tensor:
    """log(Phi(beta - k sigma) - Phi(alpha - k sigma)); alpha <= 0, so the difference never is one
    of two numbers near one.
    """
    shift = power * sigma
    low, high = (torch.special.log_ndtr((end - mu) / sigma - shift) for end in (LOW, HIGH))
    return high + torch.log(-torch.expm1(low - high))


def _edge(x: Tensor) -> Tensor:
    """x phi(x), zero far out."""
    return x * torch.exp(-0.5 * x.clamp(-1e4, 1e4) ** 2) / math.sqrt(2 * math.pi)
