"""Random-walk Metropolis: propose a step in a random direction, accept it by the ratio of
densities.

w' = w + s S r, r ~ N(0, I), accepted with min(1, p(D, w') / p(D, w)); S is the metric and s adapts
in the warm-up to an acceptance of 0.234. Needs no gradients, and so many moves per independent
draw, growing with the number of parameters, that it serves small models and tests.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from credo.core.settings import setting
from credo.engine.fit_job import FitJob
from credo.engine.method import methods
from credo.kernels.acceptance import accepted, rate_of
from credo.kernels.metric import velocity
from credo.kernels.target import State, normal
from credo.kernels.warmup import spread
from credo.methods.sampling.parts.chains import Transition
from credo.methods.sampling.parts.density import Density
from credo.methods.sampling.parts.full_batch import FullBatchSampler, Mover


@methods.register("metropolis")
@dataclass(frozen=True)
class Metropolis(FullBatchSampler):
    """A random walk with acceptance."""

    name: ClassVar[str] = "metropolis"
    summary: ClassVar[str] = "Random-walk Metropolis: no gradients; for small models."
    reference: ClassVar[str] = (
        "Metropolis et al. 1953; Roberts, Gelman and Gilks 1997, Weak convergence and optimal "
        "scaling."
    )
    fidelity: ClassVar[str] = "exact in the limit"
    conformance_settings: ClassVar[dict[str, Any]] = {
        "num_warmup": 500,
        "num_draws": 500,
        "thin": 10,
        "num_chains": 8,
    }

    num_warmup: int = setting(
        5000, "Moves of every chain before the first draw, during which it adapts.", ge=0
    )
    thin: int = setting(20, "Moves per draw.", ge=1)
    target_rate: float = setting(
        0.234, "Acceptance rate that the step size is adapted to.", gt=0.0, le=0.99
    )

    def transition(self, density: Density, fit_job: FitJob) -> Transition:
        """A random walk on the posterior."""
        return Walk(density, fit_job, self)


class Walk(Mover[Metropolis]):
    """Metropolis moves of all chains."""

    def evaluate(self, position: Tensor) -> State:
        """The log density alone."""
        prior, fit = self.target.parts(position)
        return {"position": position, "value": prior + fit}

    def start(self, position: Tensor, source: torch.Generator) -> State:
        """The step that suits a Gaussian of unit variance."""
        step = torch.tensor(
            2.38 / math.sqrt(position.shape[1]), dtype=torch.float64, device=position.device
        )
        return self.evaluate(position) | self.warmup.start(position, step)

    def go(self, state: State, index: int, source: torch.Generator) -> tuple[State, State]:
        """One proposal of every chain."""
        position, step = state["position"], self.warmup.step(state, index)
        there = self.evaluate(
            position + spread(step, position) * velocity(state["scale"], normal(position, source))
        )
        rate = rate_of(there["value"] - state["value"])
        take = accepted(rate, source)
        position = torch.where(take.unsqueeze(-1), there["position"], position)
        value = torch.where(take, there["value"], state["value"])
        state = self.warmup.learn(
            state | {"position": position, "value": value}, index, position, rate
        )
        if self.warmup.settles(index):
            state = self.warmup.restart(
                state, torch.full_like(step, 2.38 / math.sqrt(position.shape[1]))
            )
        return state, {"log_density": value, "acceptance": rate, "step_size": step}
