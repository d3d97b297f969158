"""Stochastic gradient Langevin dynamics: descent on batches plus noise of exactly the size that
makes its path a sample.

w <- w - eta dU/dw + sqrt(2 eta T) noise with U = -(N / B) sum log p(y given x, w) - log p(w) and
eta = lr / N. The step is not corrected by acceptance: variances are too large by a factor 1 / (1 -
eta a / 2) for a direction of curvature a, and by the heat of batch noise. Fails where curvatures
differ widely: the steepest direction bounds the step and the flattest then barely moves (see
``psgld``, ``sghmc``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from credo.engine.fit_job import FitJob
from credo.engine.method import methods
from credo.kernels.langevin import overdamped
from credo.kernels.target import State
from credo.methods.sampling.parts.chains import Transition
from credo.methods.sampling.parts.density import Density
from credo.methods.sampling.parts.stochastic_gradient import Drift, StochasticSampler


@methods.register("sgld")
@dataclass(frozen=True)
class SGLD(StochasticSampler):
    """Langevin steps on batches."""

    name: ClassVar[str] = "sgld"
    summary: ClassVar[str] = (
        "Stochastic gradient Langevin dynamics: descent with noise that makes it sample."
    )
    reference: ClassVar[str] = (
        "Welling and Teh 2011, Bayesian learning via stochastic gradient Langevin dynamics."
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

    def transition(self, density: Density, fit_job: FitJob) -> Transition:
        """Langevin steps on the posterior."""
        return Steps(density, fit_job, self)


class Steps(Drift[SGLD]):
    """SGLD moves of all chains."""

    def go(
        self, state: State, slope: Tensor, index: int, source: torch.Generator
    ) -> tuple[State, State]:
        """One Langevin step."""
        moved = overdamped(state["position"], slope, self.eta, self.sampler.temperature, source)
        return {"position": moved}, {}
