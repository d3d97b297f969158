"""Warm-up: step size by dual averaging throughout, the metric in windows that double in length.

A first stretch finds the bulk of the target, then every window's draws give the next metric, and a
last stretch finds the step size under the final one. Positions of the warm-up are never draws, so
nothing adapts while it counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from credo.kernels.hamiltonian import first_step
from credo.kernels.leapfrog import Integrator
from credo.kernels.log_density import Point
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
