"""log p(x) by annealed importance sampling, and both ways round on simulated data.

A chain starts at z ~ p(z) and follows p(z) p(x given z)^b as b rises from 0 to 1, one Hamiltonian
step per temperature (Neal 2001). The mean of the chains' weights is an unbiased estimate of p(x),
so its logarithm is a lower bound in expectation. For a datum drawn from the model itself the code
it came from is an exact posterior draw; a chain from there back to the prior gives an upper bound
(bidirectional Monte Carlo, Grosse, Ghahramani and Adams 2015; for decoders Wu et al. 2017). The
distance of the two bounds the error of either.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, final

import torch
from torch import Tensor

from credo.generative.bounds import log_mean_exp
from credo.generative.network import LatentNet
from credo.kernels.hamiltonian import Integrator
from credo.kernels.log_density import Point, differentiable, rate_of

TARGET = 0.65  # share of accepted proposals that step sizes are tuned to
#: Temperatures are evenly spaced in a logistic curve from -4 to 4: dense near both ends.
_SPACING = 4.0


class Density(NamedTuple):
    """log p(z) and log p(x given z), ``(K, N)`` for ``(K, N, D)``."""

    prior: Callable[[Tensor], Tensor]
    fit: Callable[[Tensor], Tensor]


def density(net: LatentNet, x: Tensor) -> Density:
    """Of data as they are modelled."""
    targets = net.targets(x)
    return Density(net.log_prior, lambda z: net.log_fit(z, targets))


def ladder(steps: int, device: torch.device) -> Tensor:
    """Inverse temperatures b_0 = 0 .. b_T = 1."""
    curve = torch.sigmoid(torch.linspace(-_SPACING, _SPACING, steps + 1, dtype=torch.float64))
    return ((curve - curve[0]) / (curve[-1] - curve[0])).to(device)


@final
class Chains:
    """K chains per datum along the ladder; step sizes are tuned in a first run and fixed in the
    runs that count.

    Tuning while counting would make the transitions depend on the past and the estimate biased.
    """

    def __init__(self, density: Density, steps: int, leapfrog: int, like: Tensor) -> None:
        self.density, self.leapfrog = density, leapfrog
        self.ladder = ladder(steps, like.device)
        self.sizes = torch.full(
            (steps + 1, like.shape[1]), 0.1, dtype=like.dtype, device=like.device
        )  # (T + 1, N)
        self.accepted = torch.zeros(like.shape[1], dtype=like.dtype, device=like.device)

    def tune(self, z: Tensor) -> None:
        """One pass up the ladder from prior draws ``(K, N, D)``, each step size set by the
        acceptance of the one before.
        """
        size = self.sizes[0].clone()
        for place in range(1, len(self.ladder)):
            z, rate = self._step(z, self.ladder[place], size)
            size = size * torch.exp(0.3 * (rate - TARGET))
            self.sizes[place] = size

    def up(self, z: Tensor) -> Tensor:
        """log weights ``(K, N)`` of chains from prior draws to the posterior: the mean weight
        estimates p(x).
        """
        total = torch.zeros(z.shape[:-1], dtype=torch.float64, device=z.device)
        rates = []
        for place in range(1, len(self.ladder)):
            total += (self.ladder[place] - self.ladder[place - 1]) * self._fit(z)
            z, rate = self._step(z, self.ladder[place], self.sizes[place])
            rates.append(rate)
        self.accepted = torch.stack(rates).mean(0)
        return total

    def down(self, z: Tensor) -> Tensor:
        """log weights ``(K, N)`` of chains from posterior draws to the prior: the mean weight
        estimates 1 / p(x).
        """
        total = torch.zeros(z.shape[:-1], dtype=torch.float64, device=z.device)
        for place in range(len(self.ladder) - 1, 0, -1):
            z, _ = self._step(z, self.ladder[place], self.sizes[place])
            total -= (self.ladder[place] - self.ladder[place - 1]) * self._fit(z)
        return total

    def _fit(self, z: Tensor) -> Tensor:
        with torch.no_grad():
            return self.density.fit(z).double()

    def _step(self, z: Tensor, b: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
        """One Hamiltonian Monte Carlo step that leaves p(z) p(x given z)^b as it is; the draws, and
        acceptance per datum.
        """
        power = b.to(z.dtype)
        target = differentiable(lambda q: self.density.prior(q) + power * self.density.fit(q))
        momentum = torch.randn_like(z)
        start = Point.at(target, z)
        end, turned = Integrator(target)(
            start, momentum, size.unsqueeze(-1), torch.ones_like(z[0, 0]), self.leapfrog
        )
        rate = rate_of(
            end.value - start.value + 0.5 * (momentum.square() - turned.square()).sum(-1)
        )
        taken = torch.rand_like(rate) < rate
        return torch.where(taken.unsqueeze(-1), end.position, z), rate.mean(0)


def anneal(net: LatentNet, x: Tensor, chains: int, steps: int, leapfrog: int) -> Tensor:
    """The estimate of log p(x) ``(N,)`` for data as they are modelled."""
    start = _from_prior(net, chains, len(x))
    run = Chains(density(net, x), steps, leapfrog, start)
    run.tune(start)
    return log_mean_exp(run.up(_from_prior(net, chains, len(x))))


def both_ways(
    net: LatentNet, z: Tensor, x: Tensor, chains: int, steps: int, leapfrog: int
) -> tuple[Tensor, Tensor]:
    """Lower and upper estimate of log p(x) ``(N,)`` for data with the codes ``(N, D)`` they were
    drawn from.
    """
    start = _from_prior(net, chains, len(x))
    run = Chains(density(net, x), steps, leapfrog, start)
    run.tune(start)
    lower = log_mean_exp(run.up(_from_prior(net, chains, len(x))))
    upper = -log_mean_exp(run.down(z.expand(chains, *z.shape).clone()))
    return lower, upper


def _from_prior(net: LatentNet, chains: int, count: int) -> Tensor:
    with torch.no_grad():
        return net.from_prior(chains * count).unflatten(0, (chains, count))
