"""Gaussian dropout: w = W s with s ~ N(1, alpha); alpha fixed at p / (1 - p), or learned within (0,
1).

Noise on inputs gives all weights of a unit one factor (the correlated form), noise on weights gives
every weight its own. Under the log-uniform prior the KL depends on alpha alone, and Molchanov's fit
of it (2017) serves alpha <= 1 too: variational dropout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Normal

from credo.core.linear_map import LinearMap
from credo.core.seeds import Noise
from credo.posteriors.family import families
from credo.posteriors.multiplicative import Multiplicative, MultiplicativeDraw, Places
from credo.posteriors.std_transform import perturb
from credo.priors import is_log_uniform

_HALF_LOG_2PIE = 0.5 * math.log(2 * math.pi * math.e)
_NODES = 12  # of the quadrature over s, for priors without a closed form


@families.register("gaussian_dropout")
class GaussianDropout(Multiplicative):
    """``per``: whether weights, units or whole layers have their own alpha; ``noise``: "input" or
    "weight"; ``learn``: alpha.
    """

    name: ClassVar[str] = "gaussian_dropout"
    kind: ClassVar[str] = "normal"

    def __init__(
        self,
        shapes: Mapping[str, Sequence[int]],
        places: Places | Mapping[str, Any],
        noise: str = "input",
        per: str = "layer",
        learn: bool = False,
        dtype: str = "float32",
    ) -> None:
        super().__init__(shapes, places, dtype)
        self.noise, self.per, self.learn = noise, per, learn
        sizes = {
            "weight": lambda n: tuple(self.shapes[n]),
            "unit": super().unit_shape,
            "layer": lambda n: (),
        }
        raws = [torch.zeros(sizes[per](name), dtype=self.flat_mean.dtype) for name in self.noised]
        self.raw_alpha = nn.ParameterList([nn.Parameter(raw, requires_grad=learn) for raw in raws])

    @classmethod
    def start(
        cls,
        values: Mapping[str, Tensor],
        places: Places,
        rates: Mapping[str, float],
        noise: str,
        per: str,
        learn: bool,
    ) -> GaussianDropout:
        """E[w] at ``values``, alpha = p / (1 - p) everywhere (below 1 where it is learned)."""
        family = cls.begun(values, places, noise=noise, per=per, learn=learn)
        with torch.no_grad():
            for name, raw in zip(family.noised, family.raw_alpha, strict=True):
                alpha = rates[name] / (1 - rates[name])
                raw.fill_(math.log(alpha) - math.log1p(-alpha) if learn else math.log(alpha))
        return family

    def excess(self, name: str) -> Tensor:
        """alpha: sigmoid(raw) where it is learned, so that it stays below 1, else exp(raw)."""
        raw = self.raw_alpha[self.noised.index(name)]
        return torch.sigmoid(raw) if self.learn else raw.exp()

    def unit_shape(self, name: str) -> tuple[int, ...]:
        """The factors of one draw: per unit, or per weight."""
        return tuple(self.shapes[name]) if self.noise == "weight" else super().unit_shape(name)

    def over(self, name: str, units: Tensor) -> Tensor:
        """Factors as they meet the weight."""
        return units if self.noise == "weight" else super().over(name, units)

    def factor(self, name: str, raw: Tensor, align: Callable[[Tensor], Tensor]) -> Tensor:
        """1 + sqrt(alpha) eps."""
        return 1 + align(self.alpha_of(name)).sqrt() * raw

    def alpha_of(self, name: str) -> Tensor:
        """alpha, shaped like the factors of one draw."""
        alpha = self.excess(name)
        return (
            super().over(name, alpha)
            if self.noise == "weight" and self.per == "unit" and name in self.places.axes
            else alpha
        )

    def moments(
        self, op: LinearMap, mean: Tensor, var: Tensor, w: str, b: str | None
    ) -> tuple[Tensor, Tensor]:
        """Noise on weights is that of independent Gaussians with variance alpha W^2."""
        if self.noise == "input" or w not in self.places.axes or op.is_embedding:
            return super().moments(op, mean, var, w, b)
        values = self.mean()
        out, square = op(mean, values[w], None if b is None else values[b]), values[w] ** 2
        return out, op(var, square) + op(mean * mean + var, self.alpha_of(w) * square)

    def begin(self, noise: Noise, fold: Any = None) -> GaussianDropoutDraw:
        """Nothing is drawn yet."""
        return GaussianDropoutDraw(self, noise)

    def kl_elementwise(self, prior: Mapping[str, Distribution]) -> Tensor | None:
        """Under a log-uniform prior, the fit for every factor; else -E[log p(W s)] - H[s], which
        noise on weights does not have.
        """
        values, noise_of = self.layout.split(self.flat_mean), self.noise_of
        total = self.flat_mean.new_zeros(())
        uniform = [d for d in prior.values() if is_log_uniform(d)]
        for source in self.noised:
            read = [prior[name] for name in noise_of if noise_of[name] == source]
            if (
                all(is_log_uniform(d) for d in read) and uniform
            ):  # a mask that no weight reads directly is noise all the same
                total = total + self._each(source, uniform[0])
            elif self.noise == "weight":
                return None
            else:
                total = total - self._sum(source, _HALF_LOG_2PIE + 0.5 * self.excess(source).log())
        for name, value in values.items():
            if is_log_uniform(prior[name]):  # points have no alpha: such a prior is flat for them
                continue
            if name in noise_of:
                total = total + _expected(
                    prior[name], value, self.to_units(name, self.excess(noise_of[name]))
                )
            else:
                total = total - prior[name].log_prob(value).sum()
        return total

    def _each(self, name: str, prior: Distribution) -> Tensor:
        """KL[N(1, alpha), p] of every factor, which under p(w) ~ 1/|w| is that of its weights."""
        alpha = self.excess(name)
        factors = Normal(torch.ones_like(alpha), alpha.sqrt(), validate_args=False)
        return self._sum(name, torch.distributions.kl_divergence(factors, prior))

    def _sum(self, name: str, terms: Tensor) -> Tensor:
        """A term per alpha, counted once for every factor that has it."""
        return terms.sum() * (math.prod(self.unit_shape(name)) / terms.numel())

    def rate_params(self) -> list[nn.Parameter]:
        """What alpha is made from, where it is learned."""
        return list(self.raw_alpha) if self.learn else []

    @torch.no_grad()
    def learned_rates(self) -> dict[str, float]:
        """The drop rate alpha / (1 + alpha) that matches every place's noise, averaged over its
        factors.
        """
        alphas = {name: self.excess(name) for name in self.noised} if self.learn else {}
        return {name: float((alpha / (1 + alpha)).mean()) for name, alpha in alphas.items()}

    def monitor(self) -> dict[str, float]:
        """The learned rates."""
        return {f"rate/{name}": rate for name, rate in self.learned_rates().items()}

    def config(self) -> dict[str, Any]:
        """Places, and what the noise is shared over."""
        return super().config() | {"noise": self.noise, "per": self.per, "learn": self.learn}


class GaussianDropoutDraw(MultiplicativeDraw):
    """One pass of a :class:`GaussianDropout`."""

    family: GaussianDropout

    def local(
        self, op: LinearMap, x: Tensor, w: str, b: str | Tensor | None, noise: Noise
    ) -> Tensor:
        """Noise on weights is Gaussian at the output: mean op(x, W), variance op(x^2, alpha
        W^2).
        """
        family = self.family
        if family.noise == "input" or w not in family.places.axes:
            return super().local(op, x, w, b, noise)
        value = self._values[w]
        mean = op(x, value, self._values[b] if isinstance(b, str) else b)
        var = op(op.square(x), family.alpha_of(w) * value.square())
        return perturb(mean, var, noise.normal(w, mean.shape, mean))


def _expected(prior: Distribution, value: Tensor, alpha: Tensor) -> Tensor:
    """-E[log p(W s)] summed: in closed form under a normal prior, else by Gauss-Hermite
    quadrature.
    """
    if type(prior) is Normal:
        return (
            -prior.log_prob(value) + 0.5 * alpha * value.square() / prior.scale.to(value) ** 2
        ).sum()
    import numpy as np

    nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
    terms = [
        w * prior.log_prob(value * (1 + alpha.sqrt() * x)).sum()
        for x, w in zip(nodes.tolist(), weights.tolist(), strict=True)
    ]
    return -torch.stack(terms).sum() / math.sqrt(2 * math.pi)
