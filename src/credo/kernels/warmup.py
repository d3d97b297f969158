"""Warm-up: step size by dual averaging throughout, the metric in windows that double in length.

A first stretch finds the bulk of the target, then every window's draws give the next metric, and a
last stretch finds the step size under the final one. Positions of the warm-up are never draws, so
nothing adapts while it counts.

How long trajectories should be is measured on the way: half as long as it takes them to turn back.
From a fresh momentum a chain is followed until the sum of its momenta points against the present
one, the same test that ends the trees of NUTS. In a quadratic valley that is half a period, and
half of it, a quarter period, is where a draw has forgotten the one before. A trajectory that
becomes unstable says nothing about its length and is left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from credo.kernels.hamiltonian import Integrator, first_step, kinetic
from credo.kernels.log_density import DIVERGENT, Point, normal
from credo.kernels.metric import Moments, no_moments, observe, scale_of, unit

_RATE, _DELAY, _FADE = 0.05, 10.0, 0.75  # of dual averaging, as Hoffman and Gelman (2014) give them


class StepSize(NamedTuple):
    """A step size, of any shape, on its way to the wanted acceptance rate (dual averaging)."""

    log_step: Tensor  #: on trial
    log_step_mean: Tensor  #: average of the trials: what is used once the warm-up is over
    anchor: Tensor  #: where trials return to without evidence
    miss: Tensor  #: running mean of wanted - rate
    tries: Tensor  #: rounds of proposals so far


def overall(rate: Tensor, strict: bool) -> Tensor:
    """The mean over chains, the last axis; ``strict``: the harmonic one, in which a single chain
    that is stuck shortens the step for all.
    """
    rate = rate.double()
    return 1 / (1 / rate.clamp_min(1e-3)).mean(-1) if strict else rate.mean(-1)


def start_averaging(step: Tensor) -> StepSize:
    """Before the first proposal, from a first guess ``step`` of any shape."""
    log_step = step.double().log()
    zero = torch.zeros_like(log_step)
    return StepSize(log_step, log_step, log_step + math.log(10.0), zero, zero)


def average(state: StepSize, rate: Tensor, wanted: float) -> StepSize:
    """Take in the acceptance rate of one round of proposals (Nesterov's dual averaging on wanted -
    rate).
    """
    tries = state.tries + 1
    weight = 1 / (tries + _DELAY)
    miss = (1 - weight) * state.miss + weight * (wanted - rate)
    log_step = state.anchor - tries.sqrt() / _RATE * miss
    fade = tries**-_FADE
    mean = fade * log_step + (1 - fade) * state.log_step_mean
    return StepSize(log_step, mean, state.anchor, miss, tries)


class Adaptation(NamedTuple):
    """What a sampler has learned of the target in its warm-up."""

    step_size: StepSize
    scale: Tensor  #: the metric: (P,) standard deviations or (P, P) lower triangle
    moments: Moments  #: of the window's positions, for the next metric


def first_stretch(num_warmup: int) -> int:
    """Iterations in which chains find the bulk, before the first window."""
    return 75 if num_warmup >= 150 else int(0.15 * num_warmup)


def windows(num_warmup: int) -> list[int]:
    """Iterations after which a new metric is taken: window ends, the first after the first
    stretch, each twice as long as the last.

    A warm-up too short for a metric and a step size under it has none: the unit one stays.
    """
    if num_warmup < 40:
        return []
    if num_warmup < 150:
        return [num_warmup - max(15, num_warmup // 4)]
    last, size = num_warmup - 50, 25
    ends, end = [], first_stretch(num_warmup)
    while end < last:
        # a window that would leave too little for one twice as long takes the rest
        end = last if end + 3 * size > last else end + size
        ends.append(end)
        size *= 2
    return ends


@dataclass(frozen=True)
class WarmUp:
    """Adaptation over ``num_warmup`` iterations towards an acceptance rate ``wanted``; ``dense``:
    of the whole covariance.
    """

    num_warmup: int
    wanted: float
    dense: bool = False

    def start(self, position: Tensor, step: Tensor) -> Adaptation:
        """Before the first iteration, from a first step size of any shape."""
        return Adaptation(
            start_averaging(step), unit(position, self.dense), no_moments(position, self.dense)
        )

    def start_trajectories(
        self, integrator: Integrator, point: Point, source: torch.Generator
    ) -> Adaptation:
        """Likewise, with a step size at which trajectories are accepted."""
        scale = unit(point.position, self.dense)
        return self.start(point.position, first_step(integrator, point, scale, source, 0.1))

    def step(self, adaptation: Adaptation, index: int) -> Tensor:
        """The step size to use: the current trial, or after the warm-up the average of the last
        ones.
        """
        size = adaptation.step_size
        return (size.log_step if index < self.num_warmup else size.log_step_mean).exp()

    def new_metric_after(self, index: int) -> bool:
        """Whether this iteration ends with a new metric, so that the step size must be found
        anew.
        """
        return index + 1 in windows(self.num_warmup)

    def adapt(
        self, adaptation: Adaptation, index: int, position: Tensor, rate: Tensor
    ) -> Adaptation:
        """Take in where the chains are ``(C, P)`` and how readily they moved ``(..., C)``; beyond
        the warm-up nothing changes.
        """
        if index >= self.num_warmup:
            return adaptation
        step_size, scale, moments = adaptation
        ends = windows(self.num_warmup)
        begin = first_stretch(self.num_warmup)
        step_size = average(step_size, overall(rate, strict=index < begin), self.wanted)
        if ends and begin <= index < ends[-1]:
            moments = observe(moments, position)
        if index + 1 in ends:
            scale = scale_of(moments, position)
            moments = no_moments(position, self.dense)
        return Adaptation(step_size, scale, moments)

    def adapt_trajectories(
        self,
        integrator: Integrator,
        adaptation: Adaptation,
        index: int,
        point: Point,
        rate: Tensor,
        source: torch.Generator,
    ) -> Adaptation:
        """Likewise; under a new metric the step size starts where trajectories are accepted."""
        adaptation = self.adapt(adaptation, index, point.position, rate)
        if not self.new_metric_after(index):
            return adaptation
        guess = adaptation.step_size.log_step_mean.exp()
        return self.restart(
            adaptation, first_step(integrator, point, adaptation.scale, source, guess)
        )

    def restart(self, adaptation: Adaptation, step: Tensor) -> Adaptation:
        """Average from this step size on."""
        return adaptation._replace(step_size=start_averaging(step))


def per_chain(
    step: Tensor, position: Tensor, generator: torch.Generator | None = None, jitter: float = 0.0
) -> Tensor:
    """One step size for each chain ``(C, 1)``, in the positions' type; jittered by up to a share so
    that no trajectory closes on itself.
    """
    steps = step.to(position.dtype).expand(len(position), 1)
    if generator is None or not jitter:
        return steps
    noise = torch.rand(
        len(position), 1, generator=generator, dtype=position.dtype, device=position.device
    )
    return steps * (1 + jitter * (2 * noise - 1))


SHARE = 0.5  #: of the time to the turn that a trajectory lasts
EVERY = 5  #: moves of the warm-up between two measurements
_MEMORY = 0.8  # of the average over measurements, after the first few


class TrajectoryLength(NamedTuple):
    """How long trajectories are, by the measurements so far."""

    log_time: Tensor  #: () log of the time to the turn: steps times their size
    measured: Tensor  #: () number of measurements

    @classmethod
    def start(cls, step: Tensor) -> TrajectoryLength:
        """Before the first measurement: ten steps."""
        log_time = (10 / SHARE * step).double().log()
        return cls(log_time, torch.zeros_like(step, dtype=torch.float64))

    def update(self, turned: Tensor, step: Tensor) -> TrajectoryLength:
        """Take in the numbers of steps ``(C,)`` to the turn at this step size: a running mean of
        the logarithm of the chains' mean time.
        """
        found = (turned.clamp_min(1) * step).nanmean().log()
        if bool(found.isnan()):
            return self
        measured = self.measured + 1
        weight = (1 / measured).clamp_min(1 - _MEMORY)
        return TrajectoryLength(self.log_time + weight * (found - self.log_time), measured)

    def num_steps(self, step: Tensor, most: int) -> int:
        """Steps of a trajectory at this step size."""
        return max(1, min(most, round(float(SHARE * self.log_time.exp() / step))))


def turning_steps(
    integrator: Integrator,
    point: Point,
    step: Tensor,
    scale: Tensor,
    most: int,
    source: torch.Generator,
) -> Tensor:
    """Steps ``(C,)`` until every chain turns back, at most ``most``, NaN for one that becomes
    unstable; chains do not move.
    """
    momentum = normal(point.position, source)
    energy = kinetic(momentum) - point.value.double()
    total = momentum.clone()
    steps = torch.zeros_like(energy)
    going, stable = (
        torch.ones_like(steps, dtype=torch.bool),
        torch.ones_like(steps, dtype=torch.bool),
    )
    for _ in range(most):
        point, momentum = integrator(point, momentum, step, scale, 1)
        steps += going
        total = total + momentum
        lost = ~(kinetic(momentum) - point.value.double() - energy < DIVERGENT)  # true of NaN, too
        stable = stable & ~(going & lost)
        going = going & ~lost & ((total - 0.5 * momentum) * momentum).sum(-1).gt(0)
        if not bool(going.any()):
            break
    return torch.where(stable, steps, torch.nan)
