"""How much the KL counts at each step, and how the learning rate falls.

The reported ELBO always uses weight 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from credo.core.registry import Registry

#: (progress of the warm-up in 0..1, batch number from 0, batches per epoch) -> weight
Schedule = Callable[[float, int, int], float]
schedules: Registry[Schedule] = Registry("KL schedule")


@schedules.register("constant")
def constant(progress: float, batch: int, batches: int) -> float:
    """1 throughout."""
    return 1.0


@schedules.register("linear")
def linear(progress: float, batch: int, batches: int) -> float:
    """Rises evenly from 0 to 1 over the warm-up."""
    return min(progress, 1.0)


@schedules.register("cosine")
def cosine(progress: float, batch: int, batches: int) -> float:
    """Rises from 0 to 1 along half a cosine."""
    return 0.5 - 0.5 * math.cos(math.pi * min(progress, 1.0))


@schedules.register("late")
def late(progress: float, batch: int, batches: int) -> float:
    """Nothing for the first quarter of the warm-up, then rises evenly to 1: a network that is to
    lose weights learns first.
    """
    return min(max(4.0 * progress - 1.0, 0.0) / 3.0, 1.0)


@schedules.register("blundell")
def blundell(progress: float, batch: int, batches: int) -> float:
    """M 2^-i / (1 - 2^-M) for batch i = 1..M: the first batches of an epoch follow the prior, the
    last ones the data.

    Averages 1 over an epoch (Blundell et al. 2015, section 3.4, written so that nothing overflows).
    """
    return batches * 2.0 ** -(batch + 1) / (1.0 - 2.0**-batches)


#: progress of the fit in 0..1 -> factor of the learning rate
decays: Registry[Callable[[float], float]] = Registry("learning-rate schedule")


@decays.register("constant")
def hold(progress: float) -> float:
    """1 throughout: the last iterate keeps the noise of its gradients."""
    return 1.0


@decays.register("linear")
def line(progress: float) -> float:
    """Falls evenly from 1 to 0."""
    return 1.0 - progress


@decays.register("cosine")
def fall(progress: float) -> float:
    """Falls from 1 to 0 along half a cosine, which averages that noise away."""
    return 0.5 + 0.5 * math.cos(math.pi * progress)
