"""Parallel tempering: a ladder of chains from the posterior up to almost the prior, whose
neighbours swap places.

Rung k samples p(w) p(D given w)^b_k by Hamiltonian moves, b_0 = 1; hot rungs roam between modes and
pass them down by swaps. The ladder is respaced in the warm-up until every pair swaps equally often.
Only the posterior's rung is kept. Costs K chains for one; with many data the modes are so far apart
in likelihood that K must be large: look at ``swap`` in the history.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from credo.core.settings import setting
from credo.engine.fit_job import FitJob
from credo.engine.method import methods
from credo.kernels.hamiltonian import hmc
from credo.kernels.ladder import geometric, respace, swap
from credo.kernels.leapfrog import Integrator
from credo.kernels.target import Point, State
from credo.methods.sampling.parts.chains import Transition
from credo.methods.sampling.parts.density import Density
from credo.methods.sampling.parts.full_batch import Mover, Trajectories

JITTER = 0.2  # of the step size


@methods.register("tempering")
@dataclass(frozen=True)
class Tempering(Trajectories):
    """Chains at many temperatures that swap."""

    name: ClassVar[str] = "tempering"
    summary: ClassVar[str] = "Parallel tempering: hot chains carry cold ones between modes."
    reference: ClassVar[str] = (
        "Geyer 1991, Markov chain Monte Carlo maximum likelihood; Syed et al. 2022, "
        "Non-reversible parallel tempering."
    )
    fidelity: ClassVar[str] = "exact in the limit"
    conformance_settings: ClassVar[dict[str, Any]] = {
        "num_warmup": 200,
        "num_draws": 500,
        "num_rungs": 4,
        "num_steps": 5,
    }

    num_rungs: int = setting(8, "Temperatures.", ge=1)
    hottest: float = setting(
        0.02, "Power of the likelihood at the hottest rung; above 0.", gt=0.0, le=1.0
    )
    num_steps: int = setting(20, "Leapfrog steps of a move.", ge=1)

    def transition(self, density: Density, fit_job: FitJob) -> Transition:
        """A ladder over the posterior."""
        return Rungs(density, fit_job, self)


class Rungs(Mover[Tempering]):
    """K x C chains, the rungs one after another: the first C are the posterior's."""

    def __init__(self, density: Density, fit_job: FitJob, sampler: Tempering) -> None:
        super().__init__(density, fit_job, sampler)
        self.powers = torch.ones(
            sampler.num_rungs * sampler.num_chains, dtype=torch.float64, device=density.model.device
        )
        self.hot = self.target.tempered(self.powers)
        self.integrator = Integrator(self.hot, sampler.compile)

    def start(self, position: Tensor, source: torch.Generator) -> State:
        """All rungs at the same places, each with a step size of its own."""
        powers = geometric(self.sampler.num_rungs, self.sampler.hottest, position)
        self._set(powers)
        position = position.repeat(self.sampler.num_rungs, 1)
        point = Point.at(self.hot, position)
        state = point.state() | self.first(point, source)
        same = {
            key: state[key].expand(len(powers)).clone()
            for key in ("log_step", "log_step_mean", "anchor", "miss", "tries")
        }
        rejected = torch.zeros(
            2, max(len(powers) - 1, 1), dtype=torch.float64, device=position.device
        )  # sums and counts
        swapped = torch.full_like(powers[1:], torch.nan)  # how readily each pair last did
        return state | same | {"powers": powers, "rejected": rejected, "swapped": swapped}

    def kept(self, state: State) -> Tensor:
        """The posterior's rung."""
        return state["position"][: self.sampler.num_chains]

    def evaluate(self, position: Tensor) -> State:
        """Log densities and slopes, every rung at its power."""
        return Point.at(self.hot, position).state()

    def move(self, state: State, index: int, source: torch.Generator) -> tuple[State, State]:
        """One move, every rung at the power that the state says."""
        self._set(state["powers"])
        return super().move(state, index, source)

    def _set(self, powers: Tensor) -> None:
        self.powers.copy_(powers.repeat_interleave(self.sampler.num_chains))

    def go(self, state: State, index: int, source: torch.Generator) -> tuple[State, State]:
        """A trajectory of every chain, then swaps."""
        rungs, chains = self.sampler.num_rungs, self.sampler.num_chains
        step = self.warmup.step(state, index)
        noise = torch.rand(
            rungs * chains, 1, generator=source, dtype=torch.float64, device=step.device
        )
        wide = step.repeat_interleave(chains).unsqueeze(1) * (1 + JITTER * (2 * noise - 1))
        position = state["position"]
        moved = hmc(
            self.integrator,
            Point.of(state),
            wide.to(position.dtype),
            state["scale"],
            self.sampler.num_steps,
            source,
        )
        _, fits = self.target.parts(moved.point.position)
        origin, rates = swap(state["powers"], fits.reshape(rungs, chains), index, source)
        rows = (origin * chains + torch.arange(chains, device=origin.device)).flatten()
        state = state | self.evaluate(moved.point.position[rows])
        state = self._adapt(state, index, moved.rate.reshape(rungs, chains), rates)
        value = state["value"][:chains]
        cold = {
            "log_density": value,
            "energy": moved.energy[:chains],
            "divergent": moved.divergent[:chains],
        }
        info = cold | {
            "acceptance": moved.rate[:chains],
            "step_size": step[0],
            "steps": torch.tensor(float(self.sampler.num_steps)),
        }
        now = rates.mean(-1)
        state = state | {
            "swapped": torch.where(now.isnan(), state["swapped"], now)
        }  # pairs take turns
        swapped = state["swapped"].nanmean()
        return state, info if bool(swapped.isnan()) else info | {"swap": swapped}

    def _adapt(self, state: State, index: int, rate: Tensor, rates: Tensor) -> State:
        """Step sizes by rung, the metric from the posterior's rung, the ladder from how often swaps
        fail.
        """
        if index >= self.warmup.num_warmup:
            return state
        before = state["scale"]
        state = self.warmup.learn(state, index, self.kept(state), rate)
        if len(rates):
            tried = ~rates.isnan().any(-1)
            missed = torch.where(tried, 1 - rates.mean(-1), 0.0)
            state = state | {"rejected": state["rejected"] + torch.stack([missed, tried.double()])}
        if not self.warmup.settles(index):
            return state
        change = (
            _size(before) / _size(state["scale"])
        ).double()  # steps keep their length in space under the new metric
        state = self.warmup.restart(state, state["log_step_mean"].exp() * change)
        if len(rates):
            sums, counts = state["rejected"]
            powers = respace(state["powers"], sums / counts.clamp_min(1))
            self._set(powers)
            state = (
                state
                | {"powers": powers, "rejected": torch.zeros_like(state["rejected"])}
                | self.evaluate(state["position"])
            )
        return state


def _size(scale: Tensor) -> Tensor:
    """The geometric mean of the standard deviations of a scale."""
    return (scale if scale.dim() == 1 else scale.diagonal()).log().mean().exp()
