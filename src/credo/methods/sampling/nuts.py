"""The no-U-turn sampler: Hamiltonian Monte Carlo whose trajectories end when they turn back, so
that no length is to be chosen.

Each chain's trajectory doubles until it turns; the draw is picked along it by weight. Chains run
together and wait for the longest trajectory among them: with many chains ``hmc``, whose chains keep
step, is faster. Fails as every sampler does between modes that barriers keep apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from credo.core.settings import setting
from credo.engine.fit_job import FitJob
from credo.engine.method import methods
from credo.kernels.nuts import nuts
from credo.kernels.target import Point, State
from credo.kernels.warmup import spread
from credo.methods.sampling.parts.chains import Transition
from credo.methods.sampling.parts.density import Density
from credo.methods.sampling.parts.full_batch import Mover, Trajectories


@methods.register("nuts")
@dataclass(frozen=True)
class NUTS(Trajectories):
    """Trajectories that end by themselves."""

    name: ClassVar[str] = "nuts"
    summary: ClassVar[str] = "No-U-turn sampler: trajectories that end when they turn back."
    reference: ClassVar[str] = (
        "Hoffman and Gelman 2014, The no-U-turn sampler; Betancourt 2017, A conceptual "
        "introduction to HMC."
    )
    fidelity: ClassVar[str] = "exact in the limit"
    conformance_settings: ClassVar[dict[str, Any]] = {"num_warmup": 150, "num_draws": 300}

    max_depth: int = setting(
        10, "Doublings of a trajectory at most: 2^max_depth - 1 steps.", ge=1, le=20
    )

    def transition(self, density: Density, fit_job: FitJob) -> Transition:
        """Trees on the posterior."""
        return Trees(density, fit_job, self)


class Trees(Mover[NUTS]):
    """NUTS moves of all chains."""

    def __init__(self, density: Density, fit_job: FitJob, sampler: NUTS) -> None:
        super().__init__(density, fit_job, sampler)
        self.integrator = sampler.integrator(self.target)

    def start(self, position: Tensor, source: torch.Generator) -> State:
        """Evaluate the target and find a first step size."""
        point = Point.at(self.target, position)
        return point.state() | self.first(point, source)

    def go(self, state: State, index: int, source: torch.Generator) -> tuple[State, State]:
        """One tree of every chain."""
        step = self.warmup.step(state, index)
        walk = nuts(
            self.integrator,
            Point.of(state),
            spread(step, state["position"]),
            state["scale"],
            self.sampler.max_depth,
            source,
        )
        state = self.adapt(state | walk.point.state(), index, walk.point, walk.rate, source)
        info = {
            "log_density": walk.point.value,
            "energy": walk.energy,
            "divergent": walk.divergent,
            "acceptance": walk.rate,
        }
        return state, info | {"step_size": step, "steps": walk.steps, "depth": walk.depth}
