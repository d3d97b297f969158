"""Posteriors of group scales: what q(z) of a group is, what its prior is, and what the two cost.

One class each.

Scales lie in *banks*, one per layer or tensor, with one entry per group. A part knows how z is
drawn, its moments, its KL and how much a group still says.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.distributions import Normal

from credo.core.errors import SettingError
from credo.core.registry import Registry
from credo.core.seeds import Noise
from credo.core.sites import FlatLayout
from credo.posteriors.draw import Params
from credo.priors.mixing import log_uniform_kl

LIMIT = 8.0  # of log alpha, as of single weights in sparse variational dropout
Align = Callable[[Tensor], Tensor]

scale_parts: Registry[type[Scales]] = Registry("posterior of group scales")


class Scales(nn.Module, ABC):
    """Normal numbers, ``loc`` and ``raw_std`` (the log of their deviation), from which the scales
    of every bank are made.
    """

    name: ClassVar[str]
    label: ClassVar[str]  # of the prior, for messages
    proper: ClassVar[bool] = True
    #: Whether E[log z] and E[z^-2] exist, which centred weights need.
    centres: ClassVar[bool] = False
    threshold: ClassVar[float]  # of the score from which a group is pruned, unless the user says

    def __init__(self, counts: Mapping[str, int], dtype: str = "float32") -> None:
        super().__init__()
        self.counts = dict(counts)
        self.layout = FlatLayout({bank: self.latent_shape(count) for bank, count in counts.items()})
        self.loc = nn.Parameter(torch.zeros(self.layout.numel, dtype=getattr(torch, dtype)))
        self.raw_std = nn.Parameter(torch.zeros_like(self.loc))

    @abstractmethod
    def latent_shape(self, count: int) -> torch.Size:
        """Of what is drawn for a bank of this many groups."""

    @abstractmethod
    def begin(self, sizes: Params, init_std: float) -> None:
        """Put the scales of every bank at ``sizes`` ``(G,)``, which are positive, with a relative
        deviation of ``init_std``.
        """

    @abstractmethod
    def scale(self, bank: str, latent: Tensor) -> Tensor:
        """z ``(..., G)`` from latents ``(..., *latent_shape)``."""

    @abstractmethod
    def local(
        self, bank: str, noise: Noise, shape: tuple[int, ...], single: tuple[int, ...], align: Align
    ) -> Tensor:
        """z of ``shape``; ``align`` shapes one number per group to broadcast against it, ``single``
        is ``shape`` with one group.
        """

    @abstractmethod
    def own(self, bank: str) -> tuple[Tensor, Tensor]:
        """E[z] and E[z^2] ``(G,)`` of the part of z that a group has to itself."""

    @abstractmethod
    def score(self, bank: str, square: Tensor, var: Tensor, centred: bool) -> Tensor:
        """How little every group says ``(G,)``: from the threshold on it is pruned.

        ``square``, ``var``: sums of mu^2 and of sigma^2 over a group.
        """

    @abstractmethod
    def kl(self) -> Tensor:
        """KL[q(z), p(z)] summed over everything."""

    def common(self, bank: str) -> tuple[Tensor, Tensor]:
        """E and E of the square ``()`` of the factor that all groups of a bank share; one and one
        where there is none.
        """
        return self.loc.new_ones(()), self.loc.new_ones(())

    def inverse(self, bank: str) -> tuple[Tensor, Tensor]:
        """E[log z] and E[z^-2] ``(G,)``, for weights that the scales do not multiply."""
        raise SettingError(
            f"centred=True needs E[1 / z^2], which q of the {self.label} scales does not have; "
            "use centred=False or the horseshoe."
        )

    def first(self, bank: str) -> Tensor:
        """E[z] ``(G,)``."""
        return self.own(bank)[0] * self.common(bank)[0]

    def second(self, bank: str) -> Tensor:
        """E[z^2] ``(G,)``."""
        return self.own(bank)[1] * self.common(bank)[1]

    def std(self) -> Tensor:
        """Deviations of the normal numbers, in a row."""
        return self.raw_std.exp()

    def numbers(self, bank: str) -> tuple[Tensor, Tensor]:
        """Mean and deviation of a bank's latents."""
        return self.layout.split(self.loc)[bank], self.layout.split(self.std())[bank]

    def latents(self, noise: Noise, banks: list[str]) -> Params:
        """One draw of the latents of these banks, all independent of each other."""
        out = {}
        for bank in banks:
            loc, std = self.numbers(bank)
            out[bank] = torch.addcmul(loc, std, noise.normal(f"scales/{bank}", loc.shape, loc))
        return out

    def log_prob(self, latents: Params) -> Tensor:
        """Log density of latents of all banks, leading axes kept."""
        tiny = torch.finfo(self.loc.dtype).tiny
        normal = Normal(self.loc, self.std().clamp_min(tiny), validate_args=False)
        return normal.log_prob(self.layout.join(latents)).sum(-1)

    def config(self) -> dict[str, Any]:
        """JSON-able arguments besides counts and dtype."""
        return {"name": self.name}


@scale_parts.register("normal_jeffreys")
class NormalJeffreys(Scales):
    """q(z) = N(mu_z, sigma_z^2) under the log-uniform p(z) ~ 1 / abs(z), which with p(w given z) is
    the normal-Jeffreys prior (Louizos et al. 2017).

    The KL is a function of log alpha = log sigma_z^2 - log mu_z^2, and log alpha is the score: at
    3, the default threshold, z has a drop rate of 0.95. The prior is improper.
    """

    name: ClassVar[str] = "normal_jeffreys"
    label: ClassVar[str] = "normal-Jeffreys"
    proper: ClassVar[bool] = False
    threshold: ClassVar[float] = 3.0

    def latent_shape(self, count: int) -> torch.Size:
        """z itself."""
        return torch.Size((count,))

    @torch.no_grad()
    def begin(self, sizes: Params, init_std: float) -> None:
        """mu_z there, sigma_z in proportion."""
        self.loc.copy_(self.layout.join(sizes))
        self.raw_std.copy_(self.loc.log() + math.log(init_std))

    def std(self) -> Tensor:
        """sigma_z, at most exp(4) times abs(mu_z)."""
        return torch.minimum(self.raw_std.exp(), self.loc.abs() * math.exp(LIMIT / 2))

    def log_alpha(self) -> Tensor:
        """log(sigma_z^2 / mu_z^2), at most 8, of all groups in a row."""
        size = self.loc.abs().clamp_min(torch.finfo(self.loc.dtype).tiny)
        return (2.0 * (self.raw_std - size.log())).clamp_max(LIMIT)

    def scale(self, bank: str, latent: Tensor) -> Tensor:
        """The latent."""
        return latent

    def local(
        self, bank: str, noise: Noise, shape: tuple[int, ...], single: tuple[int, ...], align: Align
    ) -> Tensor:
        """mu_z + sigma_z eps."""
        loc, std = self.numbers(bank)
        return torch.addcmul(align(loc), align(std), noise.normal(bank, shape, loc))

    def own(self, bank: str) -> tuple[Tensor, Tensor]:
        """mu_z and mu_z^2 + sigma_z^2."""
        loc, std = self.numbers(bank)
        return loc, loc.square() + std.square()

    def score(self, bank: str, square: Tensor, var: Tensor, centred: bool) -> Tensor:
        """log alpha, whatever the weights are."""
        return self.layout.split(self.log_alpha())[bank]

    def kl(self) -> Tensor:
        """Molchanov et al.'s fit, summed; groups at the limit feel nothing of it."""
        return log_uniform_kl(self.log_alpha()).sum()


def log_normal_gamma_kl(loc: Tensor, std: Tensor, scale: Tensor | float = 1.0) -> Tensor:
    """KL[a, Gamma(1/2, scale)] for log a ~ N(loc, std^2): E[a] / scale - (loc - log scale) / 2 -
    log std - (1 + log 2) / 2.

    1 / b of an inverse-Gamma b(1/2, 1) is such an a, so KL[b, IG(1/2, 1)] is this at -loc.
    """
    shifted = loc - (scale.log() if isinstance(scale, Tensor) else math.log(scale))
    return (
        (shifted + 0.5 * std.square()).exp()
        - 0.5 * shifted
        - std.log()
        - 0.5 * (1.0 + math.log(2.0))
    )


@scale_parts.register("horseshoe")
class Horseshoe(Scales):
    """z = z_local z_global, both half-Cauchy: z_local ~ C+(0, 1) for every group and z_global ~
    C+(0, tau0) for the bank.

    The square of a half-Cauchy number of scale s is a b with a ~ Gamma(1/2, scale s^2) and b ~
    IG(1/2, 1); q of log a and of log b is normal. Latents are ``(2, G + 1)``: log a and log b of
    every group and, last, of the bank. The score is the noise of a group against its signal,
    log(sum V[w] / sum E[w]^2): unlike the size of z, which goes with that of the inputs and the
    width of the layer, it means the same everywhere. At 3, the default threshold, a group is 95 %
    noise.
    """

    name: ClassVar[str] = "horseshoe"
    label: ClassVar[str] = "horseshoe"
    centres: ClassVar[bool] = True
    threshold: ClassVar[float] = 3.0

    def __init__(
        self, counts: Mapping[str, int], dtype: str = "float32", tau0: float = 1.0
    ) -> None:
        super().__init__(counts, dtype)
        self.tau0 = tau0

    def latent_shape(self, count: int) -> torch.Size:
        """log a and log b of the groups and of their bank."""
        return torch.Size((2, count + 1))

    @torch.no_grad()
    def begin(self, sizes: Params, init_std: float) -> None:
        """A bank's scale at the geometric mean of its groups, what they differ by in theirs; a and
        b alike.
        """
        for bank, loc in self.layout.split(self.loc).items():
            logs = sizes[bank].log()
            loc.copy_(torch.cat([logs - logs.mean(), logs.mean().reshape(1)]).expand(2, -1))
        self.raw_std.fill_(math.log(init_std))

    def _log(self, bank: str) -> tuple[Tensor, Tensor]:
        """Mean and variance of log z: ``(G,)`` of the groups and, last, of the bank, ``(G +
        1,)``.
        """
        loc, std = self.numbers(bank)
        return 0.5 * loc.sum(0), 0.25 * std.square().sum(0)

    def scale(self, bank: str, latent: Tensor) -> Tensor:
        """sqrt(a b) of a group times that of its bank."""
        logs = 0.5 * latent.sum(-2)
        return (logs[..., :-1] + logs[..., -1:]).exp()

    def local(
        self, bank: str, noise: Noise, shape: tuple[int, ...], single: tuple[int, ...], align: Align
    ) -> Tensor:
        """exp of the sum of two normal numbers, the bank's the same for all groups."""
        loc, var = self._log(bank)
        std = var.sqrt()
        groups = torch.addcmul(align(loc[:-1]), align(std[:-1]), noise.normal(bank, shape, loc))
        return (groups + loc[-1] + std[-1] * noise.normal(f"{bank}/common", single, loc)).exp()

    def own(self, bank: str) -> tuple[Tensor, Tensor]:
        """Moments of the log-normal z_local."""
        loc, var = self._log(bank)
        return (loc[:-1] + 0.5 * var[:-1]).exp(), (2.0 * (loc[:-1] + var[:-1])).exp()

    def common(self, bank: str) -> tuple[Tensor, Tensor]:
        """Moments of the log-normal z_global."""
        loc, var = self._log(bank)
        return (loc[-1] + 0.5 * var[-1]).exp(), (2.0 * (loc[-1] + var[-1])).exp()

    def inverse(self, bank: str) -> tuple[Tensor, Tensor]:
        """E[log z], and E[z^-2] = exp(2 V[log z] - 2 E[log z])."""
        loc, var = self._log(bank)
        mean = loc[:-1] + loc[-1]
        return mean, (2.0 * (var[:-1] + var[-1] - mean)).exp()

    def score(self, bank: str, square: Tensor, var: Tensor, centred: bool) -> Tensor:
        """log(sum V[w] / sum E[w]^2) over the group, where V[w] / E[w]^2 = exp(V[log z]) (1 +
        sigma^2 / mu^2) - 1 if z multiplies.
        """
        ratio = var / square.clamp_min(torch.finfo(square.dtype).tiny)
        if not centred:
            _, var = self._log(bank)
            width = var[:-1] + var[-1]
            ratio = torch.expm1(width) + width.exp() * ratio
        return ratio.log()

    def kl(self) -> Tensor:
        """Four closed forms per bank: of a and b, of groups and of the bank."""
        total = self.loc.new_zeros(())
        for bank in self.counts:
            loc, std = self.numbers(bank)
            local = log_normal_gamma_kl(loc[0, :-1], std[0, :-1]).sum()
            common = log_normal_gamma_kl(loc[0, -1], std[0, -1], self.tau0**2)
            total = total + local + common + log_normal_gamma_kl(-loc[1], std[1]).sum()
        return total

    def config(self) -> dict[str, Any]:
        """tau0."""
        return super().config() | {"tau0": self.tau0}
