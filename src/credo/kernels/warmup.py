"""Warm-up: step size by dual averaging throughout, the metric in windows that double in length.

A first stretch finds the bulk of the target, then every window's draws give the next metric, and a
last stretch settles the step size under the final one. Draws of the warm-up are never kept, so
nothing adapts while it counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from credo.kernels.acceptance import average, overall, start_averaging
from credo.kernels.metric import no_moments, observe, scale_of, unit
from credo.kernels.target import State

_AVERAGING = ("log_step", "log_step_mean", "anchor", "miss", "tries")
_MOMENTS = ("seen", "mean", "squares")


def settling(num_warmup: int) -> int:
    """Iterations of the first stretch, in which chains find the bulk."""
    return 75 if num_warmup >= 150 else int(0.15 * num_warmup)


def windows(num_warmup: int) -> list[int]:
    """Iterations after which a new metric is taken: window ends, the first after a settling
    stretch, each twice as long as the last.

    A warm-up too short for a metric and a step size under it keeps the unit one.
    """
    if num_warmup < 40:
        return []
    if num_warmup < 150:
        return [num_warmup - max(15, num_warmup // 4)]
    last, size = num_warmup - 50, 25
    ends, end = [], settling(num_warmup)
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

    def start(self, position: Tensor, step: Tensor) -> State:
        """Before the first iteration, from a first step size of any shape."""
        return (
            start_averaging(step)
            | {"scale": unit(position, self.dense)}
            | no_moments(position, self.dense)
        )

    def step(self, state: State, index: int) -> Tensor:
        """The step size to use: the current trial, or after the warm-up the average of the last
        ones.
        """
        return state["log_step" if index < self.num_warmup else "log_step_mean"].exp()

    def settles(self, index: int) -> bool:
        """Whether a new metric was taken after this iteration, so that the step size must be found
        anew.
        """
        return index + 1 in windows(self.num_warmup)

    def learn(self, state: State, index: int, position: Tensor, rate: Tensor) -> State:
        """Take in where the chains are ``(C, P)`` and how readily they moved ``(..., C)``; beyond
        the warm-up nothing changes.
        """
        if index >= self.num_warmup:
            return state
        ends = windows(self.num_warmup)
        begin = settling(self.num_warmup)
        state = state | average(
            {key: state[key] for key in _AVERAGING},
            overall(rate, strict=index < begin),
            self.wanted,
        )
        moments = {key: state[key] for key in _MOMENTS}
        if ends and begin <= index < ends[-1]:
            moments = observe(moments, position)
        if index + 1 in ends:
            state = state | {"scale": scale_of(moments, position)}
            moments = no_moments(position, self.dense)
        return state | moments

    def restart(self, state: State, step: Tensor) -> State:
        """Average from this step size on."""
        return state | start_averaging(step)


def spread(
    step: Tensor, position: Tensor, generator: torch.Generator | None = None, jitter: float = 0.0
) -> Tensor:
    """Step sizes ``(C, 1)`` in the positions' type, each jittered by up to a share so that no
    trajectory closes on itself.
    """
    wide = step.to(position.dtype).expand(len(position), 1)
    if generator is None or not jitter:
        return wide
    noise = torch.rand(
        len(position), 1, generator=generator, dtype=position.dtype, device=position.device
    )
    return wide * (1 + jitter * (2 * noise - 1))
