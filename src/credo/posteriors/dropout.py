"""Dropout: w = W z / (1 - p) with z ~ Bernoulli(1 - p), p the drop rate; fixed, or learned through
a concrete relaxation.

q is a mixture of two points per unit, so its KL to a continuous prior holds up to an infinite
constant, as a point's does: KL = -E_q[log p(w)] - H[z]. Under N(0, l^-2) that is sum l^2 / (2 (1 -
p)) W^2 - K H(p) and constants, in nats per data set.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Distribution, Normal

from credo.core.errors import CredoError
from credo.core.seeds import Noise
from credo.posteriors.draw import Gate
from credo.posteriors.family import families
from credo.posteriors.multiplicative import Multiplicative, MultiplicativeDraw, Places
from credo.priors import has_pole

_EDGE = 1e-6  # learned rates stay this far from 0 and 1
_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


def weight_decay(length_scale: float, p: float, num_data: int) -> float:
    """torch's ``weight_decay`` that equals a prior N(0, l^-2) on weights behind ``nn.Dropout(p)``:
    l^2 / (N (1 - p)).
    """
    return length_scale**2 / (num_data * (1.0 - p))


def length_scale(weight_decay: float, p: float, num_data: int) -> float:
    """The length scale l of the prior N(0, l^-2) that a ``weight_decay`` stands for: the inverse of
    :func:`weight_decay`.
    """
    return math.sqrt(weight_decay * num_data * (1.0 - p))


def bernoulli_entropy(p: Tensor) -> Tensor:
    """-p log p - (1 - p) log(1 - p) in nats, elementwise."""
    return -(torch.xlogy(p, p) + torch.xlogy(1 - p, 1 - p))


class Dropped(Multiplicative):
    """What fixed and learned rates share."""

    kind: ClassVar[str] = "uniform"

    @abstractmethod
    def rate(self, name: str) -> Tensor:
        """Drop rate of a place: one number, or one per unit."""

    def excess(self, name: str) -> Tensor:
        """p / (1 - p)."""
        rate = self.rate(name)
        return rate / (1 - rate)

    def factor(self, name: str, raw: Tensor, align: Callable[[Tensor], Tensor]) -> Tensor:
        """z / (1 - p), kept where u < 1 - p."""
        keep = 1 - align(self.rate(name))
        return (raw < keep).to(raw.dtype) / keep

    def entropy(self) -> Tensor:
        """H[z] in nats, summed over all units of all places."""
        total = self.flat_mean.new_zeros(())
        for name in self.noised:
            rate, units = self.rate(name), math.prod(self.unit_shape(name))
            total = total + bernoulli_entropy(rate).sum() * (units if rate.dim() == 0 else 1)
        return total

    def kl_elementwise(self, prior: Mapping[str, Distribution]) -> Tensor:
        """sum over weights of p (-log p(0)) + (1 - p)(-log p(W / (1 - p))), minus H[z]."""
        values, noise_of = self.layout.split(self.flat_mean), self.noise_of
        total = -self.entropy()
        for name, value in values.items():
            rate = self.to_units(name, self.rate(noise_of[name])) if name in noise_of else None
            total = total + _expected(prior[name], value, rate, name)
        return total


def _expected(prior: Distribution, value: Tensor, rate: Tensor | None, name: str) -> Tensor:
    """-E[log p(W z / (1 - p))], summed."""
    if type(prior) is Normal and prior.loc.numel() == 1 and prior.scale.numel() == 1:
        loc, scale, square = prior.loc.to(value), prior.scale.to(value), value.square()
        square = (
            square.sum()
            if rate is None
            else square.sum() / (1 - rate)
            if rate.dim() == 0
            else (square / (1 - rate)).sum()
        )
        distance = square - 2 * loc * value.sum() + value.numel() * loc**2
        return 0.5 * distance / scale**2 + value.numel() * (scale.log() + _HALF_LOG_2PI)
    if rate is None:
        return -prior.log_prob(value).sum()
    at_zero = prior.log_prob(torch.zeros_like(value))
    pole = has_pole(prior)
    if pole or (
        not torch.is_grad_enabled() and not bool(at_zero.isfinite().all())
    ):  # asked before training: a step must not wait
        raise CredoError(
            f"The prior of {name!r} has no finite density at 0, where dropout puts its weights; "
            "use a prior such as Normal(0.0, 1.0)."
        )
    return -(rate * at_zero + (1 - rate) * prior.log_prob(value / (1 - rate))).sum()


@families.register("dropout")
class Dropout(Dropped):
    """Fixed rates, one per place (Gal and Ghahramani 2016).

    Their size is chosen, not inferred: more data do not make it surer.
    """

    name: ClassVar[str] = "dropout"

    def __init__(
        self,
        shapes: Mapping[str, Sequence[int]],
        places: Places | Mapping[str, Any],
        rates: Mapping[str, float],
        dtype: str = "float32",
    ) -> None:
        super().__init__(shapes, places, dtype)
        self.rates = {name: float(rates[name]) for name in self.noised}

    @classmethod
    def start(
        cls, values: Mapping[str, Tensor], places: Places, rates: Mapping[str, float]
    ) -> Dropout:
        """E[w] at ``values``, the given rate at every place."""
        return cls.begun(values, places, rates=rates)

    def rate(self, name: str) -> Tensor:
        """The fixed number."""
        return torch.full(
            (), self.rates[name], dtype=self.flat_mean.dtype, device=self.flat_mean.device
        )

    def factor(self, name: str, raw: Tensor, align: Callable[[Tensor], Tensor]) -> Tensor:
        """z / (1 - p), kept where u < 1 - p."""
        keep = 1.0 - self.rates[name]
        return (
            (raw < keep) * (1.0 / keep)
            if raw.dtype == torch.get_default_dtype()
            else (raw < keep).to(raw.dtype) / keep
        )

    def begin(self, noise: Noise, fold: Any = None) -> DropoutDraw:
        """Nothing is drawn yet."""
        return DropoutDraw(self, noise)

    def config(self) -> dict[str, Any]:
        """Places and rates."""
        return super().config() | {"rates": self.rates}


class DropoutDraw(MultiplicativeDraw):
    """One pass of a :class:`Dropout`."""

    family: Dropout

    def scaled(
        self,
        w: str,
        x: Tensor,
        shape: tuple[int, ...],
        axis: int | None,
        noise: Noise,
        align: Callable[[Tensor], Tensor],
    ) -> Tensor:
        """torch's own dropout where every entry has its own mask."""
        if tuple(x.shape) == shape:
            return F.dropout(x, self.family.rates[w])
        return super().scaled(w, x, shape, axis, noise, align)


@families.register("concrete_dropout")
class ConcreteDropout(Dropped):
    """Learned rates, one per place or per unit (Gal, Hron and Kendall 2017).

    Training relaxes z to 1 - sigmoid((logit p + logit u) / t), whose gradient reaches p; a colder t
    has less bias and more variance. Draws for predictions are hard. Estimators that need no
    relaxation ask for hard masks by :meth:`ConcreteDraw.harden`.
    """

    name: ClassVar[str] = "concrete_dropout"
    gated: ClassVar[bool] = True

    def __init__(
        self,
        shapes: Mapping[str, Sequence[int]],
        places: Places | Mapping[str, Any],
        per: str = "layer",
        temperature: float = 0.1,
        dtype: str = "float32",
    ) -> None:
        super().__init__(shapes, places, dtype)
        self.per, self.temperature = per, temperature
        sizes = [self.unit_shape(name) if per == "unit" else () for name in self.noised]
        self.logits = nn.ParameterList(
            [nn.Parameter(torch.zeros(s, dtype=self.flat_mean.dtype)) for s in sizes]
        )

    @classmethod
    def start(
        cls,
        values: Mapping[str, Tensor],
        places: Places,
        rates: Mapping[str, float],
        per: str,
        temperature: float,
    ) -> ConcreteDropout:
        """E[w] at ``values``, every rate of a place at the given one."""
        family = cls.begun(values, places, per=per, temperature=temperature)
        with torch.no_grad():
            for name, logit in zip(family.noised, family.logits, strict=True):
                logit.fill_(math.log(rates[name] / (1 - rates[name])))
        return family

    def logit(self, name: str) -> Tensor:
        """log p - log(1 - p)."""
        return self.logits[self.noised.index(name)]

    def rate(self, name: str) -> Tensor:
        """sigmoid of the logit, kept off 0 and 1."""
        return torch.sigmoid(self.logit(name)).clamp(_EDGE, 1 - _EDGE)

    def rate_params(self) -> list[nn.Parameter]:
        """The logits of the rates."""
        return list(self.logits)

    @torch.no_grad()
    def learned_rates(self) -> dict[str, float]:
        """The drop rate of every place, averaged over its units."""
        return {name: float(self.rate(name).mean()) for name in self.noised}

    def monitor(self) -> dict[str, float]:
        """The learned rates."""
        return {f"rate/{name}": rate for name, rate in self.learned_rates().items()}

    def begin(self, noise: Noise, fold: Any = None) -> ConcreteDraw:
        """Nothing is drawn yet."""
        return ConcreteDraw(self, noise)

    def config(self) -> dict[str, Any]:
        """Places, sharing and temperature."""
        return super().config() | {"per": self.per, "temperature": self.temperature}


class ConcreteDraw(MultiplicativeDraw):
    """One pass of a :class:`ConcreteDropout`; relaxed while it is being fitted, unless hardened."""

    family: ConcreteDropout

    def __init__(self, family: ConcreteDropout, noise: Noise) -> None:
        super().__init__(family, noise)
        self.soft = torch.is_grad_enabled() and any(p.requires_grad for p in family.parameters())
        self.gates: list[Gate] = []

    def harden(self) -> None:
        """Hard masks, which carry no gradient to the rates; what they were made from is kept in
        ``gates``.
        """
        self.soft = False

    def factor(
        self, name: str, raw: Tensor, align: Callable[[Tensor], Tensor], axis: int | None
    ) -> Tensor:
        """z / (1 - p), relaxed or hard."""
        family = self.family
        logit, keep = align(family.logit(name)), 1 - align(family.rate(name))
        if self.soft:
            tiny = torch.finfo(raw.dtype).eps
            u = raw.clamp(tiny, 1 - tiny)
            return torch.sigmoid(-(logit + u.log() - torch.log1p(-u)) / family.temperature) / keep
        self.gates.append(Gate(-logit, raw, axis))
        return (raw < keep).to(raw.dtype) / keep
