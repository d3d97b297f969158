"""How long chains run where their length is not given: what a budget of gradients pays for.

The budget is counted in work, not in seconds, so that a seeded fit repeats. Half of it is for the
warm-up at most; chains may end before it is spent, when they have mixed (``mixing.py``).
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Protocol

from credo.core.errors import SettingError
from credo.engine.fit_job import Problem

WARMUP, DRAWS = 1000, 1000  # moves of samplers on all data, at most
MAX_STEPS, MAX_DEPTH = 1000, 10  # of a trajectory
LEAST = 10  # moves and draws, however dear a gradient is
TOO_FEW = 50  # gradients, with which chains on all data come nowhere
SHARE = 1.5  # warm-up moves over the root of the budget: trajectories may be as long as it
MEASURED = 1.4  # steps taken per step of a trajectory in the warm-up, with those that measure it
LR = 1e-2  # of what is fitted alongside, in a warm-up of its usual length
STEP = 0.45  # of the budget of gradients: a step draws a batch and noise and is recorded
STEP_DRAWS = 100  # of these, where the problem does not say
STEPS, THIN = 2000, 50  # of stochastic-gradient samplers, at most: of the warm-up, per draw
NUMBERS = 250_000_000  # of all draws together, at most: a gigabyte


class Chained(Protocol):
    """Settings that say how many chains there are and how long they run."""

    name: ClassVar[str]

    @property
    def num_chains(self) -> int: ...

    @property
    def num_warmup(self) -> int | None: ...


def full_batch_lengths(
    settings: Chained, problem: Problem, cost: float = 0.0, longest: int = WARMUP
) -> dict[str, Any]:
    """Numbers of moves and draws, and limits of trajectories with which the warm-up takes about
    half of the budget at most. ``cost``: gradients of a move, where that is known; ``longest``
    warm-up.
    """
    budget = problem.num_gradients(settings.num_chains)
    if budget < TOO_FEW:
        raise SettingError(
            f"{settings.name}: its moves see all {problem.num_data} examples, and the budget of a "
            f"fit at defaults pays for {budget} gradients of this network, which is too few to "
            "sample with; use 'sghmc' or 'deep_ensemble', or give num_warmup and num_draws."
        )
    warmup = settings.num_warmup
    if warmup is None:
        usual = 0.5 * budget / cost if cost else SHARE * math.sqrt(budget)
        warmup = min(longest, max(LEAST, int(usual)))
    found = {"num_warmup": warmup, "num_draws": most_draws(problem, settings.num_chains)}
    steps = max(1.0, 0.5 * budget / (MEASURED * max(warmup, LEAST)))
    limits = {
        "max_steps": min(MAX_STEPS, int(steps)),
        "max_depth": min(MAX_DEPTH, max(1, round(math.log2(MEASURED * steps + 1)))),
    }
    return found | {name: value for name, value in limits.items() if hasattr(settings, name)}


def alongside_lr(
    settings: Chained, problem: Problem, cost: float = 0.0, longest: int = WARMUP
) -> float:
    """0.01, and more where the warm-up is shorter than usual, so that noise and points that are
    fitted alongside come as far.
    """
    if settings.num_warmup is not None:
        return LR
    warmup = full_batch_lengths(settings, problem, cost, longest)["num_warmup"]
    return LR * min(10.0, max(1.0, WARMUP / warmup))


def stochastic_lengths(settings: Chained, problem: Problem) -> dict[str, Any]:
    """Likewise of samplers whose moves are single steps on batches: warm-up, draws and steps per
    draw.
    """
    warmup, chains = settings.num_warmup, settings.num_chains
    gradients = problem.num_gradients(chains, problem.batch_of_chains())
    steps = max(20 * LEAST, int(STEP * gradients))
    warmup = min(STEPS, int(0.3 * steps)) if warmup is None else warmup
    thin = min(THIN, max(1, (steps - warmup) // (10 * LEAST)))
    draws = min(most_draws(problem, chains), max(LEAST, (steps - warmup) // thin))
    return {"num_warmup": warmup, "num_draws": draws, "thin": thin}


def most_draws(problem: Problem, chains: int) -> int:
    """Draws of every chain that memory has room for."""
    return min(DRAWS, max(4 * LEAST, NUMBERS // (chains * max(problem.num_weights, 1))))
