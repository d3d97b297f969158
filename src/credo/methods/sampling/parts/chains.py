"""The chains of one fit: where they start, how they run, the posterior that their draws are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from torch import Tensor

from credo.core.errors import SettingError
from credo.core.seeds import generator
from credo.engine.fit_job import FitJob, Fitted
from credo.engine.model import Model
from credo.kernels.cooling import anneal
from credo.kernels.leapfrog import Integrator
from credo.methods.sampling.parts.density import Density
from credo.methods.sampling.parts.draw_schedule import DrawSchedule
from credo.methods.sampling.parts.fitted_draws import fitted_draws, posterior_of
from credo.methods.sampling.parts.full_batch import FullBatch
from credo.methods.sampling.parts.moves import Moves
from credo.methods.sampling.parts.run_moves import run_moves
from credo.methods.sampling.parts.settings import ChainSettings
from credo.methods.sampling.parts.start_values import start_values


@final
@dataclass(frozen=True)
class Chains:
    """Chains on ``density`` that start at ``position`` ``(C, P)``: annealed from there before the
    first move, or as it is. Their draws are stored in "memory" or on "disk".
    """

    fit_job: FitJob
    density: Density
    position: Tensor
    annealed: bool = False
    store: str = "memory"

    @classmethod
    def start(
        cls,
        model: Model,
        init: str | Mapping[str, Tensor],
        num_chains: int,
        fit_job: FitJob,
        store: str = "memory",
    ) -> Chains:
        """At ``start_values``."""
        starts = start_values(model, init, num_chains, fit_job.seed)
        density = Density(model, {n: v[0] for n, v in starts.items()})
        position = density.layout.join({n: starts[n] for n in model.random})
        return cls(fit_job, density, position, init == "annealing", store)

    def run(self, name: str, moves: Moves[Any], schedule: DrawSchedule) -> Tensor:
        """Draws ``(C, D, P)`` of the method ``name``; the last row of the history has their
        validation nll, where there are data to validate on.
        """
        return run_moves(name, moves, schedule, self._first(), self.fit_job, self._score)

    def fitted(self, draws: Tensor, num_chains: int | None = None) -> Fitted:
        """What a fit that ends in draws ``(C, D, P)`` returns; ``num_chains=1`` where the C are not
        Markov chains.
        """
        if self.store == "memory":  # a run's file of draws goes when the run is finished
            draws = draws.to(self.density.model.device, copy=self.fit_job.run is not None)
        return fitted_draws(self.density, draws, num_chains or len(draws))

    def _first(self) -> Tensor:
        """Positions before the first move; a run that is resumed need not anneal again."""
        run, seed, device = self.fit_job.run, self.fit_job.seed, self.position.device
        if not self.annealed or (run is not None and run.restore() is not None):
            return self.position
        target = FullBatch.of(self.density, self.fit_job.source, self.fit_job.batch_size)
        return anneal(
            Integrator(target), self.position, generator(seed, "annealing", device=device)
        )

    def _score(self, draws: Tensor) -> dict[str, float]:
        if self.fit_job.validate is None:
            return {}
        posterior = posterior_of(self.density, draws.to(self.density.model.device), len(draws))
        return {"validation_nll": self.fit_job.validate(posterior, self.density.buffers)}


def start_chains(model: Model, settings: ChainSettings, fit_job: FitJob) -> Chains:
    """Chains as their settings say; refused where their draws would have no place."""
    if settings.store == "disk" and fit_job.run is None:
        raise SettingError("store='disk' keeps draws in the run's directory; give one with run=.")
    return Chains.start(model, settings.init, settings.num_chains, fit_job, settings.store)
