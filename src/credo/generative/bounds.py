"""Bounds on log p(x), and the gradients that training maximises them with.

From K draws z_k ~ q(z given x) with weights log w_k = log p(x given z_k) + log p(z_k) - log q(z_k
given x): ELBO = mean_k log w_k, IWAE = log mean_k w_k. The value reported is always that of the
bound; what training adds to it (beta, warm-up, free bits, surrogates of the score function) only
shapes the gradient.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Distribution

from credo.core.errors import SettingError
from credo.core.registry import Registry
from credo.core.settings import setting, validate
from credo.generative.codes import Code, OneHot

gradients: Registry[type[Gradient]] = Registry("latent gradient")


@dataclass(frozen=True)
class Bound:
    """Which bound is maximised and how; the settings of ``fit`` that concern latent variables."""

    bound: str = setting(
        "elbo",
        "The evidence lower bound, or the tighter one of importance weighting.",
        choices=("elbo", "iwae"),
    )
    draws: int = setting(1, "Draws of z per datum and step, K.", ge=1)
    gradient: str | None = setting(
        None,
        "How draws of z carry gradients; by default the latent posterior's own way.",
        choices=("reparameterised", "doubly", "score", "gumbel", "straight_through"),
        kind=str,
    )
    beta: float = setting(1.0, "Weight of KL[q(z given x), p(z)] in training.", ge=0.0)
    kl_schedule: str = setting(
        "constant", "Schedule of that weight.", choices=("constant", "linear", "cosine")
    )
    kl_warmup: int = setting(0, "Epochs over which 'linear' and 'cosine' rise to beta.", ge=0)
    free_bits: float = setting(
        0.0, "Nats per latent variable that cost nothing, on the average of a batch.", ge=0.0
    )
    temperature: float = setting(0.5, "Of the Gumbel-softmax relaxation.", gt=0.0)

    def __post_init__(self) -> None:
        validate(self, "VAE")
        if self.free_bits and self.bound == "iwae":
            raise SettingError(
                "free_bits go with bound='elbo': the importance-weighted bound has no KL of its "
                "own."
            )
        if self.free_bits and self.gradient == "doubly":
            raise SettingError(
                "free_bits need gradients that see the KL as such: 'reparameterised' or 'score', "
                "not 'doubly'."
            )
        if self.kl_warmup and self.kl_schedule == "constant":
            raise SettingError(
                "kl_warmup needs a schedule that rises: kl_schedule='linear' or 'cosine'."
            )
        if not self.kl_warmup and self.kl_schedule != "constant":
            raise SettingError(
                f"kl_schedule={self.kl_schedule!r} needs kl_warmup, the number of epochs it takes."
            )

    def gradient_for(self, code: Code) -> Gradient:
        """The gradient to use with this code; refused where the code has no such one."""
        name = self.gradient or code.gradients[0]
        if name not in code.gradients:
            raise SettingError(
                f"gradient={name!r} is not for the latent posterior {code.name!r}; it has "
                f"{', '.join(code.gradients)}."
            )
        if name == "score" and self.bound == "iwae" and self.draws < 2:
            raise SettingError(
                "gradient='score' with bound='iwae' needs draws of at least 2, each the others' "
                "baseline."
            )
        return gradients[name](self, code.latent_dim)


class Drawn(NamedTuple):
    """K draws ``(K, N, size)``, their log q ``(K, N)``, and q itself."""

    z: Tensor
    log_q: Tensor
    q: Distribution

    @classmethod
    def centre(cls, q: Distribution, count: int) -> Drawn:
        """The mean in place of every draw."""
        z = q.mean.expand(count, *q.mean.shape)
        return cls(z, q.log_prob(z), q)


class Parts(NamedTuple):
    """log p(x given z), log p(z) and log q(z given x), each ``(K, N)``; the KL in closed form ``(N,
    parts)`` or None; the KL's weight.
    """

    fit: Tensor
    log_p: Tensor
    log_q: Tensor
    closed: Tensor | None
    weight: Tensor | float

    def log_weights(self, weight: Tensor | float = 1.0) -> Tensor:
        """log p(x given z) + weight (log p(z) - log q(z given x))."""
        return self.fit + weight * (self.log_p - self.log_q)

    def divergence(self) -> Tensor:
        """KL[q, p] of each datum ``(N,)``, exact where there is a closed form."""
        return (self.log_q - self.log_p).mean(0) if self.closed is None else self.closed.sum(-1)


def log_mean_exp(values: Tensor) -> Tensor:
    """log of the mean of exp over axis 0."""
    return torch.logsumexp(values, 0) - math.log(values.shape[0])


class Gradient(ABC):
    """Draws z in its own way and says what training maximises, given the terms of the bound."""

    name: ClassVar[str]
    #: Whether the KL may enter in closed form; otherwise all of it is sampled.
    exact_kl: ClassVar[bool] = True
    #: Whether its draws are draws from q, so that the bound can be read off them.
    hard: ClassVar[bool] = True

    def __init__(self, bound: Bound, latent_dim: int) -> None:
        self.bound, self.latent_dim = bound, latent_dim

    @abstractmethod
    def draw(self, code: Code, encoded: Tensor) -> Drawn:
        """K draws for encoder outputs ``(N, width)``."""

    def value(self, parts: Parts) -> Tensor:
        """The bound itself ``(N,)``, whatever training makes of it."""
        if self.bound.bound == "iwae":
            return log_mean_exp(parts.log_weights())
        return parts.fit.mean(0) - parts.divergence()

    def objective(self, parts: Parts) -> Tensor:
        """What training maximises ``(N,)``: its gradient counts, its value does not."""
        if self.bound.bound == "iwae":
            return log_mean_exp(parts.log_weights(parts.weight))
        return parts.fit.mean(0) - self.penalty(parts)

    def penalty(self, parts: Parts) -> Tensor:
        """The weighted KL ``(N,)``, without the parts whose batch average is below the free
        bits.
        """
        if parts.closed is None:
            return self.weight(parts) * parts.divergence()
        free = (
            self.bound.free_bits * self.latent_dim / parts.closed.shape[-1]
        )  # a column may stand for several variables
        counted = (parts.closed.detach().mean(0) > free).to(parts.closed.dtype) if free else 1.0
        return parts.weight * (parts.closed * counted).sum(-1)

    def weight(self, parts: Parts) -> Tensor | float:
        """The weight of a sampled KL: nothing while its batch average, over all variables together,
        is below the free bits.
        """
        free = self.bound.free_bits * self.latent_dim
        return (
            parts.weight * (parts.divergence().detach().mean() > free).to(parts.fit.dtype)
            if free
            else parts.weight
        )


@gradients.register("reparameterised")
class Reparameterised(Gradient):
    """Through the draws (Kingma and Welling 2014, Rezende et al. 2014)."""

    name: ClassVar[str] = "reparameterised"

    def draw(self, code: Code, encoded: Tensor) -> Drawn:
        """Draws with gradients."""
        return Drawn(*code.draw(encoded, self.bound.draws))


@gradients.register("doubly")
class Doubly(Gradient):
    """Through the draws alone, without the score of log q.

    For the ELBO this is the path derivative (Roeder et al. 2017), whose noise vanishes as q becomes
    exact; for IWAE the doubly reparameterised gradient (Tucker et al. 2019), whose encoder gradient
    does not fade as K grows. Both are unbiased.
    """

    name: ClassVar[str] = "doubly"
    exact_kl: ClassVar[bool] = False

    def draw(self, code: Code, encoded: Tensor) -> Drawn:
        """Draws with gradients, under a density without."""
        z, _, q = code.draw(encoded, self.bound.draws)
        if self.bound.bound == "iwae":
            z, self._tag = Weighed.apply(z)  # pyright: ignore  two tensors
        return Drawn(z, code.density(encoded, z), q)

    def objective(self, parts: Parts) -> Tensor:
        """ELBO: the mean of log w. IWAE: log w under its normalised weights s, which the encoder's
        gradient meets once more.

        With a weight b of the KL the encoder's gradient meets 1 - b + b s.
        """
        log_w = parts.log_weights(parts.weight)
        if self.bound.bound == "elbo":
            return log_w.mean(0)
        shares = torch.softmax(log_w, 0).detach()
        again = 1.0 - parts.weight + parts.weight * shares
        return (shares * log_w + again * self._tag[:-1]).sum(0) + self._tag[-1]


class Weighed(torch.autograd.Function):
    """Draws ``(K, N, D)`` as they are, and zeros ``(K + 1, N)`` as a tag; what flows back to draw k
    is multiplied by tag k over the last one.

    What the draws' gradients are to be multiplied by is not known before the decoder has run. As
    the factor of the tag in the objective it comes back as the tag's gradient, times whatever scale
    the objective has; the last row has factor one, and so is that scale.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor) -> tuple[Tensor, Tensor]:  # pyright: ignore
        tag = torch.zeros(z.shape[0] + 1, *z.shape[1:-1], dtype=z.dtype, device=z.device)
        return z.clone(), tag

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing to keep."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor, tag: Tensor) -> Tensor:  # pyright: ignore
        scale = tag[-1]
        return grad * (tag[:-1] / torch.where(scale == 0, 1.0, scale)).unsqueeze(-1)


@gradients.register("score")
class Score(Gradient):
    """(f - b) grad log q(z given x): needs no gradient through z, so z may be discrete.

    Each draw's baseline b is made of the other draws (for IWAE: VIMCO, Mnih and Rezende 2016); with
    a single draw it is the mean of the other data of the batch.
    """

    name: ClassVar[str] = "score"

    def draw(self, code: Code, encoded: Tensor) -> Drawn:
        """Draws without gradients."""
        q = code.at(encoded)
        z = q.sample(torch.Size([self.bound.draws]))
        return Drawn(z, q.log_prob(z), q)

    def objective(self, parts: Parts) -> Tensor:
        """A surrogate: the score weighted by what is left after the baseline, and what depends on
        the draws directly.
        """
        log_q = parts.log_q
        if self.bound.bound == "iwae":
            log_w = parts.log_weights(parts.weight)
            shares = torch.softmax(log_w, 0).detach()
            left = log_mean_exp(log_w).detach() - self._without(log_w.detach())
            return (left * log_q).sum(0) + (shares * log_w).sum(0)
        sampled = parts.closed is None
        weight = self.weight(parts) if sampled else parts.weight
        gain = parts.fit if not sampled else parts.fit + weight * (parts.log_p - log_q)
        gain = gain.detach()
        count, size = gain.shape
        if count > 1:
            left = gain - (gain.sum(0) - gain) / (count - 1)
        else:
            left = gain - (gain.sum() - gain) / (size - 1) if size > 1 else gain
        direct = parts.fit + weight * parts.log_p if sampled else parts.fit
        out = (left * log_q + direct).mean(0)
        return out if sampled else out - self.penalty(parts)

    def _without(self, log_w: Tensor) -> Tensor:
        """The bound of the other draws ``(K, N)``, the missing weight replaced by their geometric
        mean.
        """
        count = log_w.shape[0]
        others = (log_w.sum(0) - log_w) / (count - 1)
        swapped = log_w.unsqueeze(0).expand(count, *log_w.shape).clone()
        index = torch.arange(count, device=log_w.device)
        swapped[index, index] = others
        return log_mean_exp(swapped.transpose(0, 1))


@gradients.register("gumbel")
class Gumbel(Gradient):
    """Through a relaxation of the draws (Gumbel-softmax): low noise, but biased, and training then
    sees codes that are not one-hot.
    """

    name: ClassVar[str] = "gumbel"
    hard: ClassVar[bool] = False

    def draw(self, code: Code, encoded: Tensor) -> Drawn:
        """Relaxed draws; the KL is always that of hard ones, in closed form."""
        q = code.at(encoded)
        assert isinstance(q, OneHot)
        z = q.relaxed(torch.Size([self.bound.draws]), self.bound.temperature)
        return Drawn(z, q.log_prob(z), q)


@gradients.register("straight_through")
class StraightThrough(Gradient):
    """Hard draws whose gradient is that of their mean (Bengio et al.

    2013): biased, without a temperature.
    """

    name: ClassVar[str] = "straight_through"

    def draw(self, code: Code, encoded: Tensor) -> Drawn:
        """One-hot draws that carry the mean's gradient."""
        q = code.at(encoded)
        z = q.sample(torch.Size([self.bound.draws])) + (q.mean - q.mean.detach())
        return Drawn(z, q.log_prob(z), q)
