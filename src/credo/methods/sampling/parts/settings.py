"""Settings that several samplers share, as dataclasses that a method mixes in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from credo.core.settings import setting


@dataclass(frozen=True)
class ChainSettings:
    """How many chains there are, where they start and where their draws go."""

    num_chains: int = setting(4, "Chains, run at once.", ge=1)
    init: Any = setting(
        "random",
        "Start of each chain: 'random' (as the network's modules initialise themselves), "
        "'annealing' (a mode found by simulated annealing "
        "from there), 'prior', 'pretrained' (all at the network's values), or a state dict whose "
        "tensors may have a leading axis of chains.",
        kind=(str, Mapping),
        choices=("random", "annealing", "prior", "pretrained"),
    )
    store: str = setting(
        "memory",
        "Where draws are after the fit: in 'memory', or on 'disk' with run=.",
        choices=("memory", "disk"),
    )


@dataclass(frozen=True)
class FullBatchSettings:
    """Moves on all data that adapt their step size and metric in the warm-up.

    The fit's ``batch_size`` only cuts the sums over data to fit in memory, and its ``lr`` is of
    what is fitted alongside.
    """

    num_warmup: int | None = setting(
        None,
        "Moves of every chain before the first draw, during which it adapts; None: 1,000, or "
        "fewer where a gradient is dear.",
        ge=0,
        kind=int,
    )
    num_draws: int | None = setting(
        None, "Draws of every chain; None: until they have mixed, 1,000 at most.", ge=1, kind=int
    )
    thin: int = setting(1, "Moves per draw.", ge=1)
    target_rate: float = setting(
        0.8, "Acceptance rate that the step size is adapted to.", gt=0.0, le=0.99
    )
    mass: str = setting(
        "diagonal",
        "Metric learned in the warm-up: of each parameter, or of all jointly.",
        choices=("diagonal", "dense"),
    )


@dataclass(frozen=True)
class CompileSettings:
    """How the steps of a trajectory run."""

    compile: bool = setting(
        False,
        "Compile the trajectory's step, gradient included (on a GPU also capture it as a graph).",
    )


#: What stochastic-gradient samplers need on the small problems of the conformance checks.
CONFORMANCE: dict[str, Any] = {
    "num_warmup": 200,
    "num_draws": 500,
    "thin": 10,
    "batch_size": None,
    "lr": 0.01,
    "num_chains": 8,
}


@dataclass(frozen=True)
class StochasticGradientSettings:
    """Moves that are one step on a batch."""

    num_warmup: int | None = setting(
        None,
        "Steps of every chain before the first draw; None: 2,000, or fewer where a step is dear.",
        ge=0,
        kind=int,
    )
    num_draws: int | None = setting(
        None, "Draws of every chain; None: until they have mixed, 1,000 at most.", ge=1, kind=int
    )
    thin: int | None = setting(
        None, "Steps per draw; None: 50, or fewer where a step is dear.", ge=1, kind=int
    )
    temperature: float = setting(
        1.0, "T: samples p(w given D)^(1/T); 1 is the posterior, 0 descends.", ge=0.0
    )
    point_lr: float = setting(
        1e-2,
        "Adam's learning rate for point parameters and learned noise, during the warm-up.",
        gt=0.0,
    )
