"""Stochastic gradient Hamiltonian Monte Carlo: momentum descent on batches, with friction and the
noise that balances it.

dw = v dt, dv = -dU/dw dt - c v dt + sqrt(2 c T) dW, discretised by a splitting whose positions are
exact for Gaussian targets at any stable step (kick, half drift, friction and noise, half drift).
Step eta = lr / N; 1 - friction is the momentum. Gradient noise of batches heats it by order eta.
Fails between modes, and where lr is beyond the stable step of the steepest direction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from credo.core.settings import setting
from credo.engine.fit_job import FitJob
from credo.engine.method import methods
from credo.kernels.langevin import underdamped
from credo.kernels.target import State, normal
from credo.methods.sampling.parts.chains import Transition
from credo.methods.sampling.parts.density import Density
from credo.methods.sampling.parts.stochastic_gradient import Drift, StochasticSampler


@methods.register("sghmc")
@dataclass(frozen=True)
class SGHMC(StochasticSampler):
    """Momentum with friction and noise on batches."""

    name: ClassVar[str] = "sghmc"
    summary: ClassVar[str] = (
        "Stochastic gradient HMC: momentum descent with friction and matching noise."
    )
    reference: ClassVar[str] = (
        "Chen, Fox and Guestrin 2014, Stochastic gradient HMC; Leimkuhler and Matthews 2013 for "
        "the splitting."
    )
    tolerance: ClassVar[float] = 0.05
    conformance_settings: ClassVar[dict[str, Any]] = {
        "num_warmup": 200,
        "num_draws": 500,
        "thin": 10,
        "batch_size": None,
        "lr": 0.01,
        "num_chains": 8,
    }

    friction: float = setting(0.1, "Share of the momentum lost per step.", gt=0.0, le=1.0)

    def transition(self, density: Density, fit_job: FitJob) -> Transition:
        """Momentum steps on the posterior."""
        return Steps(density, fit_job, self)


class Steps(Drift[SGHMC]):
    """SGHMC moves of all chains."""

    def start(self, position: Tensor, source: torch.Generator) -> State:
        """Momenta of the stationary size."""
        size = (self.eta * self.sampler.temperature) ** 0.5
        return {"position": position, "momentum": size * normal(position, source)}

    def go(
        self, state: State, slope: Tensor, index: int, source: torch.Generator
    ) -> tuple[State, State]:
        """One step of the splitting."""
        sampler = self.sampler
        position, momentum = underdamped(
            state["position"],
            state["momentum"],
            slope,
            self.eta,
            sampler.friction,
            sampler.temperature,
            source,
        )
        return {"position": position, "momentum": momentum}, {}
