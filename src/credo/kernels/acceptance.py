"""Accepting proposals, and step sizes that make the wanted share of them acceptable."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from credo.kernels.log_density import uniform

DIVERGENT = 1000.0  #: error in the energy, in nats, beyond which a trajectory has left the true one
_RATE, _DELAY, _FADE = 0.05, 10.0, 0.75  # of dual averaging, as Hoffman and Gelman (2014) give them


class StepSize(NamedTuple):
    """A step size, of any shape, on its way to the wanted acceptance rate (dual averaging)."""

    log_step: Tensor  #: on trial
    log_step_mean: Tensor  #: average of the trials: what is used once the warm-up is over
    anchor: Tensor  #: where trials return to without evidence
    miss: Tensor  #: running mean of wanted - rate
    tries: Tensor  #: rounds of proposals so far


def rate_of(gain: Tensor) -> Tensor:
    """min(1, exp(gain)); a trajectory that left the numbers has rate 0."""
    return torch.nan_to_num(gain, nan=-math.inf).clamp(max=0.0).exp()


def accepted(rate: Tensor, generator: torch.Generator) -> Tensor:
    """Which chains take their proposal."""
    return uniform(rate, generator) < rate


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
