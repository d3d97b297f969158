"""Hamiltonian Monte Carlo on a small target, all chains at once: the yardstick for approximate posteriors.

State (q, p) with H = -log density(q) + p.p / 2. The leapfrog scheme keeps volume and is reversible, so accepting its end point with
probability min(1, exp(H - H')) leaves the target invariant; on rejection the current state counts again. Each chain finds its own step
size during warm-up by dual averaging towards a wanted acceptance rate; it is then frozen, and jittered by up to a fifth so that no
trajectory closes on itself. Fails to mix between modes that energy barriers keep apart: look at ``rhat``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

LogDensity = Callable[[Tensor], Tensor]


class Chains(NamedTuple):
    """Draws ``(D, C, P)`` of C chains, and per chain the share of accepted proposals and the step size, both ``(C,)``."""

    draws: Tensor
    acceptance: Tensor
    step: Tensor


class _Adaptation:
    """Dual averaging of log step sizes (Hoffman and Gelman 2014), one per chain."""

    def __init__(self, step: Tensor, wanted: float) -> None:
        self.log_step, self.average = step.log(), torch.zeros_like(step)
        self.anchor, self.miss, self.count, self.wanted = math.log(10.0) + step.log(), torch.zeros_like(step), 0, wanted

    def learn(self, rate: Tensor) -> None:
        """Take in the acceptance probabilities of one proposal per chain."""
        self.count += 1
        weight = 1.0 / (self.count + 10.0)
        self.miss = (1 - weight) * self.miss + weight * (self.wanted - rate)
        self.log_step = self.anchor - math.sqrt(self.count) / 0.05 * self.miss
        fade = self.count**-0.75
        self.average = fade * self.log_step + (1 - fade) * self.average


def hmc(
    log_density: LogDensity,
    start: Tensor,
    num_warmup: int,
    num_draws: int,
    num_steps: int,
    generator: torch.Generator,
    wanted: float = 0.8,
    first_step: float = 1e-3,
) -> Chains:
    """Draws from ``log_density((C, P)) -> (C,)``, starting at ``start (C, P)``; ``num_steps`` leapfrog steps per draw."""
    state = start.detach().clone()
    value, slope = _gradient(log_density, state)
    adaptation = _Adaptation(torch.full_like(value, first_step), wanted)
    kept, accepted = [], torch.zeros_like(value)
    for turn in range(num_warmup + num_draws):
        warm = turn < num_warmup
        jitter = 0.8 + 0.4 * torch.rand(len(state), generator=generator, dtype=state.dtype)
        step = ((adaptation.log_step if warm else adaptation.average).exp() * jitter).unsqueeze(1)
        momentum = torch.randn(state.shape, generator=generator, dtype=state.dtype)
        new, new_value, new_slope, end = _leapfrog(log_density, state, slope, momentum, step, num_steps)
        gain = new_value - 0.5 * end.square().sum(1) - value + 0.5 * momentum.square().sum(1)
        rate = gain.clamp(max=0.0).exp().nan_to_num(0.0)  # a trajectory that left the numbers is refused
        take = torch.rand(len(state), generator=generator, dtype=state.dtype) < rate
        state = torch.where(take.unsqueeze(1), new, state)
        slope = torch.where(take.unsqueeze(1), new_slope, slope)
        value = torch.where(take, new_value, value)
        if warm:
            adaptation.learn(rate)
        else:
            kept.append(state)
            accepted += take
    return Chains(torch.stack(kept), accepted / max(num_draws, 1), adaptation.average.exp())


def _leapfrog(
    log_density: LogDensity, state: Tensor, slope: Tensor, momentum: Tensor, step: Tensor, count: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """End of a trajectory: state, log density, its gradient, momentum."""
    value = torch.zeros(len(state), dtype=state.dtype)
    momentum = momentum + 0.5 * step * slope
    for place in range(count):
        state = state + step * momentum
        value, slope = _gradient(log_density, state)
        momentum = momentum + (step if place < count - 1 else 0.5 * step) * slope
    return state, value, slope, momentum


def _gradient(log_density: LogDensity, state: Tensor) -> tuple[Tensor, Tensor]:
    leaf = state.detach().requires_grad_()
    with torch.enable_grad():
        value = log_density(leaf)
        (slope,) = torch.autograd.grad(value.sum(), leaf)
    return value.detach(), slope


def rhat(values: Tensor) -> Tensor:
    """Split R-hat of ``(D, C, ...)``: sqrt of pooled over within-half-chain variance; 1 when all halves agree."""
    half = len(values) // 2
    parts = torch.cat([values[:half], values[half : 2 * half]], 1)
    within = parts.var(0).mean(0)
    between = parts.mean(0).var(0)
    return ((half - 1) / half + between / within).sqrt()
