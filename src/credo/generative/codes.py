"""Posteriors over a datum's latent variable: q(z given x), made from the numbers an encoder gives
for x.

A code says how many numbers it needs, which distribution they stand for, and how draws from it
carry gradients.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, MultivariateNormal, Normal, constraints
from torch.func import functional_call

from credo.core.errors import CredoError, SettingError
from credo.core.registry import Registry
from credo.posteriors.flow import flows_of
from credo.posteriors.std_transform import std_transforms

codes: Registry[type[Code]] = Registry("latent posterior")
STD_TRANSFORM = std_transforms["softplus"]


class Code(nn.Module, ABC):
    """q(z given x) for ``latent_dim`` latent variables, abstract.

    ``at`` gives batch shape ``(N,)`` and event shape ``(size,)``.
    """

    name: ClassVar[str]
    continuous: ClassVar[bool] = True
    #: Names of priors it has, the first by default.
    priors: ClassVar[tuple[str, ...]] = ("normal", "mixture", "vamp")
    #: Names of gradients it has, the first by default.
    gradients: ClassVar[tuple[str, ...]] = ("reparameterised", "doubly", "score")

    def __init__(self, latent_dim: int, **arguments: Any) -> None:
        if isinstance(latent_dim, bool) or not isinstance(latent_dim, int) or latent_dim < 1:
            raise SettingError(
                f"latent_dim={latent_dim!r} is not valid; expected a whole number above 0."
            )
        super().__init__()
        self.latent_dim, self.arguments = latent_dim, arguments

    @property
    @abstractmethod
    def width(self) -> int:
        """Numbers that the encoder must give per datum."""

    @property
    def size(self) -> int:
        """Numbers of z as the decoder sees it."""
        return self.latent_dim

    @abstractmethod
    def at(self, encoded: Tensor) -> Distribution:
        """q for encoder outputs ``(N, width)``."""

    def density(self, encoded: Tensor, z: Tensor) -> Tensor:
        """log q(z given x) ``(K, N)`` whose only gradients are those of z: whatever made q counts
        as constant.
        """
        return self.at(encoded.detach()).log_prob(z)

    def draw(self, encoded: Tensor, count: int) -> tuple[Tensor, Tensor, Distribution]:
        """``count`` draws ``(K, N, size)`` with gradients, their log density ``(K, N)``, and q."""
        q = self.at(encoded)
        z = q.rsample(torch.Size([count]))
        return z, q.log_prob(z), q


@codes.register("point")
class Point(Code):
    """No distribution at all: z is what the encoder says. A plain autoencoder."""

    name: ClassVar[str] = "point"
    priors: ClassVar[tuple[str, ...]] = ("none",)
    gradients: ClassVar[tuple[str, ...]] = ("reparameterised",)

    @property
    def width(self) -> int:
        """One number per latent variable."""
        return self.latent_dim

    def at(self, encoded: Tensor) -> Distribution:
        """All mass on one value."""
        return Certain(encoded)


@codes.register("diagonal")
class Diagonal(Code):
    """Independent normals: the encoder gives means and raw deviations, std = log(1 + exp(raw))."""

    name: ClassVar[str] = "diagonal"

    @property
    def width(self) -> int:
        """Mean and raw deviation."""
        return 2 * self.latent_dim

    def at(self, encoded: Tensor) -> Distribution:
        """``Independent(Normal)``."""
        mean, raw = encoded.chunk(2, -1)
        return Independent(
            Normal(mean, _positive_std(raw), validate_args=False), 1, validate_args=False
        )


@codes.register("full")
class Full(Code):
    """A normal with correlations: means, raw deviations, and what is below the diagonal of a
    Cholesky factor, row by row.
    """

    name: ClassVar[str] = "full"
    below_diagonal: Tensor

    def __init__(self, latent_dim: int) -> None:
        super().__init__(latent_dim)
        below = torch.tril_indices(latent_dim, latent_dim, -1)
        self.register_buffer("below_diagonal", below[0] * latent_dim + below[1], persistent=False)

    @property
    def width(self) -> int:
        """D + D (D + 1) / 2."""
        return 2 * self.latent_dim + len(self.below_diagonal)

    def at(self, encoded: Tensor) -> Distribution:
        """``MultivariateNormal`` from its Cholesky factor."""
        d = self.latent_dim
        mean, raw, below = encoded.split([d, d, len(self.below_diagonal)], -1)
        factor = torch.zeros(
            *mean.shape[:-1], d * d, dtype=mean.dtype, device=mean.device
        ).index_copy(-1, self.below_diagonal, below)
        factor = factor.unflatten(-1, (d, d)) + torch.diag_embed(_positive_std(raw))
        return MultivariateNormal(mean, scale_tril=factor, validate_args=False)


@codes.register("flow")
class Flow(Code):
    """z = T(e; x) with e a diagonal normal and T a stack of couplings that see the encoder's
    numbers (zuko's flows).
    """

    name: ClassVar[str] = "flow"

    def __init__(self, latent_dim: int, transforms: int = 2, hidden: int = 64) -> None:
        super().__init__(latent_dim, transforms=transforms, hidden=hidden)
        for name, value in self.arguments.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise SettingError(
                    f"Flow: {name}={value!r} is not valid; expected a whole number above 0."
                )
        if latent_dim < 2:
            raise SettingError(
                "A flow needs at least two latent variables to couple; use posterior='diagonal' "
                "for one."
            )
        make = flows_of("A flow posterior").MAF
        self.transform = make(
            latent_dim, 2 * latent_dim, transforms=transforms, passes=2, hidden_features=(hidden,)
        ).transform

    @property
    def width(self) -> int:
        """Mean and raw deviation of e, which T sees too."""
        return 2 * self.latent_dim

    def at(self, encoded: Tensor) -> Pushed:
        """A diagonal normal pushed through T."""
        mean, raw = encoded.chunk(2, -1)
        base = Independent(
            Normal(mean, _positive_std(raw), validate_args=False), 1, validate_args=False
        )
        return Pushed(base, self.transform(encoded))

    def forward(self, encoded: Tensor, z: Tensor) -> Tensor:
        """log q(z given x), as a call that parameters can be given to."""
        return self.at(encoded).log_prob(z)

    def density(self, encoded: Tensor, z: Tensor) -> Tensor:
        """With T's own parameters held constant too; the whole evaluation happens inside, because T
        is made when it is used.
        """
        constant = {name: p.detach() for name, p in self.named_parameters()}
        return functional_call(self, constant, (encoded.detach(), z))

    def draw(self, encoded: Tensor, count: int) -> tuple[Tensor, Tensor, Distribution]:
        """The density of a draw comes with it, without T's inverse."""
        q = self.at(encoded)
        start = q.base.rsample(torch.Size([count]))
        z, ladj = q.transform.call_and_ladj(start)
        return z, q.base.log_prob(start) - ladj, q


@codes.register("categorical")
class Categorical(Code):
    """``latent_dim`` independent variables with ``categories`` values each; the decoder sees them
    one-hot, the encoder gives logits.
    """

    name: ClassVar[str] = "categorical"
    continuous: ClassVar[bool] = False
    priors: ClassVar[tuple[str, ...]] = ("uniform",)
    gradients: ClassVar[tuple[str, ...]] = ("gumbel", "straight_through", "score")

    def __init__(self, latent_dim: int, categories: int = 10) -> None:
        if isinstance(categories, bool) or not isinstance(categories, int) or categories < 2:
            raise SettingError(
                f"categories={categories!r} is not valid; expected a whole number from 2."
            )
        super().__init__(latent_dim, categories=categories)
        self.categories = categories

    @property
    def width(self) -> int:
        """One logit per category."""
        return self.latent_dim * self.categories

    @property
    def size(self) -> int:
        """One-hot rows, side by side."""
        return self.width

    def at(self, encoded: Tensor) -> OneHot:
        """Independent one-hot variables."""
        return OneHot(encoded.unflatten(-1, (self.latent_dim, self.categories)))


def _positive_std(raw: Tensor) -> Tensor:
    """A deviation that is never zero, so that densities stay finite."""
    return STD_TRANSFORM.std(raw).clamp_min(torch.finfo(raw.dtype).tiny ** 0.25)


class Certain(Distribution):
    """All mass on ``value`` ``(N, D)``; its log density counts as zero."""

    arg_constraints = {}  # pyright: ignore  torch declares a property here

    def __init__(self, value: Tensor) -> None:
        self.value = value
        super().__init__(value.shape[:-1], value.shape[-1:], validate_args=False)

    @property
    def mean(self) -> Tensor:
        return self.value

    @property
    def variance(self) -> Tensor:
        return torch.zeros_like(self.value)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self.value.expand(self._extended_shape(torch.Size(sample_shape)))

    def log_prob(self, value: Tensor) -> Tensor:
        return torch.zeros(value.shape[:-1], dtype=value.dtype, device=value.device)


class Pushed(Distribution):
    """``base`` pushed through a transform; its moments have no closed form."""

    arg_constraints = {}  # pyright: ignore  torch declares a property here
    support = constraints.real_vector  # pyright: ignore

    def __init__(self, base: Distribution, transform: Any) -> None:
        self.base, self.transform = base, transform
        super().__init__(base.batch_shape, base.event_shape, validate_args=False)

    @property
    def mean(self) -> Tensor:
        """Where the base's mean goes: a typical value, not the expectation."""
        return self.transform(self.base.mean)

    @property
    def variance(self) -> Tensor:
        raise CredoError(
            "A flow's variance has no closed form; take that of draws: q.sample((1000,)).var(0)."
        )

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self.transform(self.base.rsample(torch.Size(sample_shape)))

    def log_prob(self, value: Tensor) -> Tensor:
        start, ladj = self.transform.inv.call_and_ladj(value)
        return self.base.log_prob(start) + ladj


class OneHot(Distribution):
    """G independent categorical variables from logits ``(N, G, C)``, one-hot and flattened: event
    shape ``(G C,)``.
    """

    arg_constraints = {}  # pyright: ignore  torch declares a property here

    def __init__(self, logits: Tensor) -> None:
        self.log_probs = F.log_softmax(logits, -1)
        variables, categories = logits.shape[-2:]
        super().__init__(
            logits.shape[:-2], torch.Size([variables * categories]), validate_args=False
        )

    @property
    def mean(self) -> Tensor:
        return self.log_probs.exp().flatten(-2)

    @property
    def variance(self) -> Tensor:
        return self.mean * (1.0 - self.mean)

    @property
    def mode(self) -> Tensor:
        return self._hot(self.log_probs).flatten(-2)

    def _hot(self, scores: Tensor) -> Tensor:
        return F.one_hot(scores.argmax(-1), scores.shape[-1]).to(scores.dtype)

    def _perturbed(self, sample_shape: Any) -> Tensor:
        """Log probabilities with Gumbel noise ``(*sample_shape, N, G, C)``."""
        shape = torch.Size(sample_shape) + self.log_probs.shape
        noise = torch.rand(shape, dtype=self.log_probs.dtype, device=self.log_probs.device)
        tiny = torch.finfo(noise.dtype).tiny
        return self.log_probs - (-noise.clamp_min(tiny).log()).clamp_min(tiny).log()

    def sample(self, sample_shape: Any = ()) -> Tensor:
        with torch.no_grad():
            return self._hot(self._perturbed(sample_shape)).flatten(-2)

    def relaxed(self, sample_shape: Any, temperature: float) -> Tensor:
        """Gumbel-softmax draws, which are not one-hot but have gradients (Jang et al.

        2017, Maddison et al. 2017).
        """
        return F.softmax(self._perturbed(sample_shape) / temperature, -1).flatten(-2)

    def log_prob(self, value: Tensor) -> Tensor:
        return (self.log_probs.flatten(-2) * value).sum(-1)

    def entropy_each(self) -> Tensor:
        """Entropy of every variable in nats, ``(N, G)``."""
        return -(self.log_probs.exp() * self.log_probs).sum(-1)
