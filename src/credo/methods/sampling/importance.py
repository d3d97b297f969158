"""Importance sampling: draws of an approximate posterior, weighted by how far it is from the true
one.

With w_s ~ q and weights p(D, w_s) / q(w_s), normalised to sum to one, weighted averages are exact
in the limit. The weights' upper tail is smoothed by a fitted Pareto distribution, whose shape k
says whether the limit is in reach: below 0.7 the answer can be trusted, above it q misses where the
posterior is, and that is warned about. Draws are then resampled, so that all count the same. Fails
in more than a few tens of parameters unless q is very close.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from credo.core.seeds import generator
from credo.core.settings import setting
from credo.engine.fit_job import FitJob
from credo.engine.method import Method, make_method, methods
from credo.engine.model import Fitted, Model
from credo.methods.sampling.parts.chains import fitted_draws
from credo.methods.sampling.parts.density import Density
from credo.methods.sampling.parts.full_batch import FullBatch
from credo.methods.sampling.parts.proposal import Proposal, check_proposal
from credo.metrics.importance_weights import effective, smooth, systematic
from credo.posteriors import Posterior

TRUSTED = 0.7  # largest Pareto shape at which importance sampling converges usefully


@methods.register("importance")
@dataclass(frozen=True)
class Importance(Method):
    """Self-normalised, Pareto-smoothed importance sampling with resampling."""

    name: ClassVar[str] = "importance"
    summary: ClassVar[str] = (
        "Importance sampling from another method's posterior, with effective sample size and "
        "Pareto k."
    )
    reference: ClassVar[str] = (
        "Kloek and van Dijk 1978; Vehtari, Simpson, Gelman, Yao and Gabry 2024, Pareto smoothed "
        "importance sampling."
    )
    fidelity: ClassVar[str] = "exact in the limit"
    lr: ClassVar[float | None] = 1e-2
    afterwards: ClassVar[str | None] = "draws of the proposal and their weights, on all data"
    tolerance: ClassVar[float] = 0.1
    conformance_settings: ClassVar[dict[str, Any]] = {
        "epochs": 400,
        "batch_size": None,
        "lr": 0.05,
        "num_proposals": 20_000,
    }

    proposal: Any = setting(
        "vi",
        "Where draws come from: a method's name, or a fitted posterior.",
        kind=(str, Posterior),
    )
    num_proposals: int = setting(10_000, "Draws of the proposal.", ge=100)
    num_draws: int = setting(1000, "Draws after resampling.", ge=1)

    def fit(self, model: Model, fit_job: FitJob) -> Fitted:
        posterior = self._fitted_proposal(model, fit_job)
        check_proposal(posterior, model)
        mean = posterior.mean()
        density = Density(model, {n: mean[n] for n in model.point})
        target = FullBatch.of(density, fit_job.source, fit_job.batch_size)
        proposal = Proposal(posterior, density, self.num_proposals, fit_job.seed)
        log_weights = proposal.log_weights(target)
        smoothed, k = smooth(log_weights)
        _report(log_weights, smoothed, k, fit_job)
        source = generator(fit_job.seed, "resample")
        numbers = systematic(smoothed.exp(), self.num_draws, source).to(log_weights.device)
        return fitted_draws(density, proposal.take(numbers).unsqueeze(0), num_chains=1)

    def _fitted_proposal(self, model: Model, fit_job: FitJob) -> Posterior:
        if isinstance(self.proposal, str):  # the setting takes a name or a posterior
            proposal = make_method(self.proposal, {}).for_problem(fit_job.problem)
            return proposal.fit(model, fit_job).posterior
        if fit_job.run is not None:
            fit_job.run.history(-1)
        return self.proposal


def _report(log_weights: Tensor, smoothed: Tensor, k: float, fit_job: FitJob) -> None:
    """A row of the history, and a warning where the weights cannot be trusted."""
    ess = effective(smoothed)
    row = {
        "epoch": fit_job.next_epoch,
        "log_evidence_estimate": float(torch.logsumexp(log_weights, 0))
        - math.log(len(log_weights)),
        "ess": ess,
        "pareto_k": k if math.isfinite(k) else None,
    }
    fit_job.note(row | fit_job.ended)
    if not k < TRUSTED:
        warnings.warn(
            f"importance: the weights' Pareto k is {k:.2f} (above {TRUSTED}), "
            f"{ess:.0f} of {len(log_weights)} draws count: "
            "the proposal is too far from the posterior; use a richer one, or 'hmc'.",
            stacklevel=5,
        )
