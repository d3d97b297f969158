"""Preconditioned SGLD: Langevin steps with a step size for every parameter, learned from the size
of its gradients.

w <- w - eta G dU/dw + sqrt(2 eta T G) noise, G = 1 / (sqrt(v) + eps) with v a running mean of
squared gradients, scaled to mean 1. While G depends on the path an extra drift would be needed to
sample the right distribution; here G is learned in the warm-up and then held, so that none is.
Helps where parameters differ in scale; not where directions that mix them do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from credo.core.settings import setting
from credo.engine.fit_job import FitJob
from credo.engine.method import methods
from credo.kernels.langevin import overdamped
from credo.kernels.target import State
from credo.methods.sampling.parts.chains import Transition
from credo.methods.sampling.parts.density import Density
from credo.methods.sampling.parts.stochastic_gradient import Drift, StochasticSampler


@methods.register("psgld")
@dataclass(frozen=True)
class PSGLD(StochasticSampler):
    """Langevin steps on batches, rescaled by parameter."""

    name: ClassVar[str] = "psgld"
    summary: ClassVar[str] = "SGLD with a step size per parameter, learned in the warm-up."
    reference: ClassVar[str] = (
        "Li, Chen, Carlson and Carin 2016, Preconditioned stochastic gradient Langevin dynamics."
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

    memory: float = setting(
        0.99, "Share of the running mean of squared gradients kept per step.", ge=0.0, le=0.99999
    )
    eps: float = setting(
        0.1,
        "Damping of the scale, as a share of the root mean square gradient over all parameters.",
        gt=0.0,
    )

    def transition(self, density: Density, fit_job: FitJob) -> Transition:
        """Rescaled Langevin steps on the posterior."""
        return Steps(density, fit_job, self)


class Steps(Drift[PSGLD]):
    """PSGLD moves of all chains; the scale is one for all of them."""

    def start(self, position: Tensor, source: torch.Generator) -> State:
        """No gradients seen yet."""
        return {
            "position": position,
            "squares": torch.zeros_like(position[0]),
            "scale": torch.ones_like(position[0]),
        }

    def go(
        self, state: State, slope: Tensor, index: int, source: torch.Generator
    ) -> tuple[State, State]:
        """Learn the scale during warm-up, then step."""
        squares, scale = state["squares"], state["scale"]
        if index < self.sampler.num_warmup:
            keep = self.sampler.memory
            squares = keep * squares + (1 - keep) * (slope / self.num_data).square().mean(0)
            size = (squares / (1 - keep ** (index + 1))).sqrt()
            scale = 1 / (size + self.sampler.eps * size.square().mean().sqrt().clamp_min(1e-30))
            scale = scale / scale.mean()
        moved = overdamped(
            state["position"], slope, self.eta, self.sampler.temperature, source, scale
        )
        return {"position": moved, "squares": squares, "scale": scale}, {}
