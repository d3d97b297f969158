"""The chains of one fit: where they start, how they run, the posterior that their draws are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from credo.core.errors import SettingError
from credo.core.seeds import generator, mix
from credo.engine.fit_job import FitJob
from credo.engine.model import Fitted, Model
from credo.engine.outputs import prior_draws
from credo.kernels.cooling import anneal
from credo.kernels.hamiltonian import Integrator
from credo.kernels.warmup import WarmUp
from credo.methods.sampling.parts.density import Density
from credo.methods.sampling.parts.descent import descend
from credo.methods.sampling.parts.full_batch import FullBatch
from credo.methods.sampling.parts.lengths import DRAWS, STEP_DRAWS, STEPS, THIN, WARMUP
from credo.methods.sampling.parts.mixing import Mixing
from credo.methods.sampling.parts.run_moves import DrawSchedule, Moves, SteadySchedule, run_moves
from credo.methods.sampling.parts.settings import (
    ChainSettings,
    FullBatchSettings,
    StochasticGradientSettings,
)
from credo.posteriors import Posterior, Samples


@final
@dataclass(frozen=True)
class Chains:
    """Chains on ``density`` that start at ``position`` ``(C, P)``: as it is, or annealed or
    descended from there before the first move. Their draws are stored in "memory" or on "disk".
    """

    fit_job: FitJob
    density: Density
    position: Tensor
    approach: str | None = None
    store: str = "memory"

    @classmethod
    def start(
        cls,
        model: Model,
        init: str | Mapping[str, Tensor],
        num_chains: int,
        fit_job: FitJob,
        store: str = "memory",
        descends: bool = False,
    ) -> Chains:
        """At ``start_values``; with ``descends`` random ones only show where descents begin."""
        starts = start_values(model, init, num_chains, fit_job.seed)
        density = Density(model, {n: v[0] for n, v in starts.items()})
        position = density.layout.join({n: starts[n] for n in model.random})
        approach = "anneal" if init == "annealing" else None
        approach = "descend" if descends and init == "random" else approach
        return cls(fit_job, density, position, approach, store)

    def run(self, name: str, moves: Moves[Any], schedule: DrawSchedule) -> Tensor:
        """Draws ``(C, D, P)`` of the method ``name``; the last row of the history has their
        validation nll, where there are data to validate on.
        """
        fit_job, watch = self.fit_job, self._watch(schedule) if self.fit_job.settles else None
        return run_moves(name, moves, schedule, self._first(), fit_job, self._score, watch)

    def fitted(self, draws: Tensor, num_chains: int | None = None) -> Fitted:
        """What a fit that ends in draws ``(C, D, P)`` returns; ``num_chains=1`` where the C are not
        Markov chains.
        """
        if self.store == "memory":  # a run's file of draws goes when the run is finished
            draws = draws.to(self.density.model.device, copy=self.fit_job.run is not None)
        return fitted_draws(self.density, draws, num_chains or len(draws))

    def _first(self) -> Tensor:
        """Positions before the first move; a run that is resumed need not find them again."""
        run, seed, device = self.fit_job.run, self.fit_job.seed, self.position.device
        if self.approach is None or (run is not None and run.restore() is not None):
            return self.position
        if self.approach == "descend":
            return descend(self.density, self.fit_job, self.position)
        target = FullBatch.of(self.density, self.fit_job.source, self.fit_job.batch_size)
        return anneal(
            Integrator(target), self.position, generator(seed, "annealing", device=device)
        )

    def _watch(self, schedule: DrawSchedule) -> Mixing:
        """Cycles are run to their end, since their last draws count as much as their first."""
        budget = self.fit_job.problem.num_gradients(len(self.position), self.fit_job.batch_size)
        early = isinstance(schedule, SteadySchedule)
        return Mixing(self.density, self.fit_job.source, budget, early)

    def _score(self, draws: Tensor) -> dict[str, float]:
        if self.fit_job.validate is None:
            return {}
        posterior = posterior_of(self.density, draws.to(self.density.model.device), len(draws))
        return {"validation_nll": self.fit_job.validate(posterior, self.density.buffers)}


def start_chains(model: Model, settings: ChainSettings, fit_job: FitJob) -> Chains:
    """Chains as their settings say; refused where their draws would have no place."""
    if settings.store == "disk" and fit_job.run is None:
        raise SettingError("store='disk' keeps draws in the run's directory; give one with run=.")
    start = model, settings.init, settings.num_chains, fit_job, settings.store
    return Chains.start(*start, descends=fit_job.settles)


def full_batch_schedule(settings: FullBatchSettings, warmup: int = WARMUP) -> SteadySchedule:
    """Warm-up and draws, as many as there may be where their number is not given."""
    counts = or_else(settings.num_warmup, warmup), or_else(settings.num_draws, DRAWS)
    return SteadySchedule(*counts, settings.thin)


def stochastic_schedule(settings: StochasticGradientSettings) -> SteadySchedule:
    """Likewise of steps on batches."""
    counts = or_else(settings.num_warmup, STEPS), or_else(settings.num_draws, STEP_DRAWS)
    return SteadySchedule(*counts, or_else(settings.thin, THIN))


def warm_up(settings: FullBatchSettings, warmup: int = WARMUP) -> WarmUp:
    """How step size and metric adapt."""
    count = full_batch_schedule(settings, warmup).num_warmup
    return WarmUp(count, settings.target_rate, settings.mass == "dense")


def or_else(given: int | None, usual: int) -> int:
    """``given``, or what is usual where nothing is."""
    return usual if given is None else given


def start_values(
    model: Model, init: str | Mapping[str, Tensor], chains: int, seed: int
) -> dict[str, Tensor]:
    """Stacked values ``(C, *shape)`` of every parameter; those that are not random are the same in
    all chains.
    """
    own = model.values()
    if isinstance(init, Mapping):
        return _given(model, init, own, chains)
    if init in ("random", "annealing"):
        each = [model.random_values(mix(seed, "chain", c)) for c in range(chains)]
        out = {n: torch.stack([values[n] for values in each]) for n in own}
        return {n: v if n in model.random else v[:1].expand_as(v) for n, v in out.items()}
    if init == "prior":
        return prior_draws(model, own, range(chains), mix(seed, "chains"))
    return {n: v.expand(chains, *v.shape) for n, v in own.items()}


def _given(
    model: Model, init: Mapping[str, Tensor], own: dict[str, Tensor], chains: int
) -> dict[str, Tensor]:
    for name, value in init.items():
        if (
            name in own
            and value.dim() == own[name].dim() + 1
            and value.shape[1:] == own[name].shape
            and len(value) != chains
        ):
            raise SettingError(
                f"init gives {name!r} for {len(value)} chains, but there are {chains}; give as "
                "many, or one for all."
            )
    stacked = {n: v for n, v in init.items() if n in own and v.shape == (chains, *own[n].shape)}
    rest = model.values({n: v for n, v in init.items() if n not in stacked})
    out = {n: v.expand(chains, *v.shape) for n, v in rest.items()}
    return out | {n: v.detach().to(own[n]) for n, v in stacked.items()}


def posterior_of(density: Density, draws: Tensor, num_chains: int) -> Posterior:
    """The posterior of draws ``(C, D, P)``, as they are, and of the points that were fitted
    alongside; ``num_chains`` is 1 where the C are not Markov chains.
    """
    shapes = {n: tuple(s) for n, s in density.layout.shapes.items()}
    samples = Samples.hold(draws.flatten(0, 1), shapes, num_chains)
    return density.model.with_points([samples], density.points)


def fitted_draws(density: Density, draws: Tensor, num_chains: int) -> Fitted:
    """What a fit that ends in these draws returns."""
    density.release()
    return Fitted(posterior_of(density, draws, num_chains), density.buffers)
