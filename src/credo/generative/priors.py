"""Priors over latent variables: fixed ones, learned mixtures, and mixtures of the encoder's own
posteriors.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Categorical as Choice
from torch.distributions import Distribution, Independent, MultivariateNormal, Normal

from credo.core.errors import DataError, SettingError
from credo.core.registry import Registry
from credo.generative.codes import Code, OneHot

priors: Registry[type[LatentPrior]] = Registry("latent prior")
Encode = Callable[[Tensor], Distribution]  # inputs as the network sees them -> q(z given x)


class LatentPrior(nn.Module, ABC):
    """p(z), abstract. ``encode`` gives q(z given x), for the prior that is made of it."""

    name: ClassVar[str]
    data_needed: int = 1  # how many training data ``start`` takes

    def __init__(self, size: int, **arguments: Any) -> None:
        super().__init__()
        self.size, self.arguments = size, arguments

    def prepare(self, shape: Sequence[int]) -> None:
        """Make what depends on the shape of a datum, before anything is loaded or fitted."""

    def start(self, x: Tensor) -> None:
        """Take starting values from training data, before a fit."""

    @abstractmethod
    def log_prob(self, z: Tensor, encode: Encode) -> Tensor:
        """Log density ``(...,)`` of ``(..., size)``."""

    @abstractmethod
    def sample(self, count: int, encode: Encode, like: Tensor) -> Tensor:
        """``(count, size)`` from the global generator, in the dtype and on the device of
        ``like``.
        """

    def divergence(self, q: Distribution) -> Tensor | None:
        """KL[q, p] in closed form ``(N, parts)``, a column per independent part of z; None where it
        must be sampled.
        """
        return None


@priors.register("none")
class NoPrior(LatentPrior):
    """What a plain autoencoder has: nothing is asked of z, and nothing can be drawn."""

    name: ClassVar[str] = "none"

    def log_prob(self, z: Tensor, encode: Encode) -> Tensor:
        return torch.zeros(z.shape[:-1], dtype=z.dtype, device=z.device)

    def sample(self, count: int, encode: Encode, like: Tensor) -> Tensor:
        """Refused."""
        raise SettingError("A plain autoencoder has no prior to sample from; use a VAE.")

    def divergence(self, q: Distribution) -> Tensor:
        return torch.zeros(*q.batch_shape, 1, dtype=q.mean.dtype, device=q.mean.device)


@priors.register("normal")
class StandardNormal(LatentPrior):
    """N(0, I)."""

    name: ClassVar[str] = "normal"

    def log_prob(self, z: Tensor, encode: Encode) -> Tensor:
        """-1/2 sum z^2 - D/2 log(2 pi)."""
        return -0.5 * z.square().sum(-1) - 0.5 * self.size * math.log(2.0 * math.pi)

    def sample(self, count: int, encode: Encode, like: Tensor) -> Tensor:
        return torch.randn(count, self.size, dtype=like.dtype, device=like.device)

    def divergence(self, q: Distribution) -> Tensor | None:
        """1/2 (mean^2 + var - 1) - log std per latent variable; over all of them together for a
        normal with correlations.
        """
        if isinstance(q, Independent) and isinstance(q.base_dist, Normal):
            mean, std = q.base_dist.loc, q.base_dist.scale
            return 0.5 * (mean.square() + std.square() - 1.0) - std.log()
        if isinstance(q, MultivariateNormal):
            factor = q.scale_tril
            quadratic = q.loc.square().sum(-1) + factor.square().sum((-2, -1)) - self.size
            return (0.5 * quadratic - factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)).unsqueeze(-1)
        return None


@priors.register("uniform")
class Uniform(LatentPrior):
    """Every category of every variable alike; ``size`` counts the one-hot columns."""

    name: ClassVar[str] = "uniform"

    def __init__(self, size: int, groups: int = 1) -> None:
        super().__init__(size, groups=groups)
        self.groups, self.categories = groups, size // groups

    def log_prob(self, z: Tensor, encode: Encode) -> Tensor:
        """-G log C."""
        return torch.full(
            z.shape[:-1], -self.groups * math.log(self.categories), dtype=z.dtype, device=z.device
        )

    def sample(self, count: int, encode: Encode, like: Tensor) -> Tensor:
        """One-hot rows."""
        chosen = torch.randint(self.categories, (count, self.groups), device=like.device)
        return F.one_hot(chosen, self.categories).to(like.dtype).flatten(1)

    def divergence(self, q: Distribution) -> Tensor | None:
        """log C - H[q_g] per variable."""
        return math.log(self.categories) - q.entropy_each() if isinstance(q, OneHot) else None


@priors.register("mixture")
class Mixture(LatentPrior):
    """A mixture of diagonal normals, all of it learned."""

    name: ClassVar[str] = "mixture"

    def __init__(self, size: int, components: int = 50) -> None:
        super().__init__(size, components=_count(components))
        points = (
            torch.quasirandom.SobolEngine(size, scramble=True, seed=0)
            .draw(components)
            .clamp(0.01, 0.99)
        )
        self.means = nn.Parameter(
            torch.special.ndtri(points.double()).to(torch.get_default_dtype())
        )
        self.log_stds = nn.Parameter(torch.zeros(components, size))
        self.logits = nn.Parameter(torch.zeros(components))

    def log_prob(self, z: Tensor, encode: Encode) -> Tensor:
        """logsumexp over components."""
        parts = Independent(
            Normal(self.means, self.log_stds.exp(), validate_args=False), 1, validate_args=False
        )
        return torch.logsumexp(parts.log_prob(z.unsqueeze(-2)) + F.log_softmax(self.logits, -1), -1)

    def sample(self, count: int, encode: Encode, like: Tensor) -> Tensor:
        """A component, then a draw from it."""
        chosen = Choice(logits=self.logits, validate_args=False).sample(torch.Size([count]))
        noise = torch.randn(count, self.size, dtype=like.dtype, device=like.device)
        return self.means[chosen] + self.log_stds[chosen].exp() * noise


@priors.register("vamp")
class Vamp(LatentPrior):
    """The mean of q(z given u) over learned pseudo-inputs u (Tomczak and Welling 2018), which start
    as training data.
    """

    name: ClassVar[str] = "vamp"

    def __init__(self, size: int, components: int = 50) -> None:
        super().__init__(size, components=_count(components))
        self.components = self.data_needed = components
        self.register_parameter("inputs", None)

    def prepare(self, shape: Sequence[int]) -> None:
        """Room for the pseudo-inputs."""
        self.inputs = nn.Parameter(torch.full((self.components, *shape), 0.5))

    def start(self, x: Tensor) -> None:
        """Take the first data given as pseudo-inputs."""
        if len(x) < self.components:
            raise DataError(
                f"The vamp prior has {self.components} pseudo-inputs but there are {len(x)} data; "
                "use fewer components."
            )
        with torch.no_grad():
            self.inputs.copy_(x[: self.components])

    def log_prob(self, z: Tensor, encode: Encode) -> Tensor:
        """logsumexp over pseudo-inputs."""
        return torch.logsumexp(encode(self.inputs).log_prob(z.unsqueeze(-2)), -1) - math.log(
            self.components
        )

    def sample(self, count: int, encode: Encode, like: Tensor) -> Tensor:
        """A pseudo-input, then a draw from its posterior."""
        chosen = torch.randint(self.components, (count,), device=like.device)
        return encode(self.inputs[chosen]).sample()


def make_prior(code: Code, prior: str | LatentPrior | None) -> LatentPrior:
    """A prior by name or as it is, for codes of this kind; None is the code's own."""
    name = prior.name if isinstance(prior, LatentPrior) else prior or code.priors[0]
    kind = priors[name]  # an unknown name is refused by the registry
    if name not in code.priors:
        raise SettingError(
            f"prior={name!r} is not for the latent posterior {code.name!r}; it has "
            f"{', '.join(code.priors)}."
        )
    groups = {"groups": code.latent_dim} if issubclass(kind, Uniform) else {}
    if not isinstance(prior, LatentPrior):
        return kind(code.size, **groups)
    if prior.size != code.size or any(
        prior.arguments[key] != value for key, value in groups.items()
    ):
        made = f"size {prior.size}" + "".join(f", {key} {prior.arguments[key]}" for key in groups)
        wanted = f"size {code.size}" + "".join(f", {key} {value}" for key, value in groups.items())
        raise SettingError(
            f"The prior {name!r} was made for codes of {made}; the latent posterior needs {wanted}."
        )
    return copy.deepcopy(prior)


def _count(components: int) -> int:
    if isinstance(components, bool) or not isinstance(components, int) or components < 1:
        raise SettingError(
            f"components={components!r} is not valid; expected a whole number above 0."
        )
    return components
