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
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from credo.core.errors import CredoError
from credo.core.seeds import generator
from credo.core.settings import setting
from credo.engine.fit_job import FitJob, Fitted
from credo.engine.method import Method, make_method, methods
from credo.engine.model import Model
from credo.methods.sampling.parts.chains import of_draws
from credo.methods.sampling.parts.density import Density, FullBatch
from credo.metrics.importance_weights import effective, smooth, systematic
from credo.posteriors import Posterior

TRUSTED = 0.7  # largest Pareto shape at which importance sampling converges usefully
_BUDGET = 1 << 24  # numbers drawn together


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
    lr: ClassVar[float] = 1e-2
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
    num_draws: int = setting(1000, "Draws kept after resampling.", ge=1)

    def fit(self, model: Model, fit_job: FitJob) -> Fitted:
        """Fit the proposal if it is named, weigh its draws, resample."""
        posterior = self._proposal(model, fit_job)
        _check(posterior, model)
        mean = posterior.mean()
        density = Density(model, {n: mean[n] for n in model.point})
        target = FullBatch.of(density, fit_job.source, fit_job.batch_size)
        log_weights = torch.cat(
            [logs for _, logs in self._draws(posterior, density, target, fit_job.seed)]
        )
        smoothed, k = smooth(log_weights)
        picked = systematic(smoothed.exp(), self.num_draws, generator(fit_job.seed, "resample")).to(
            log_weights.device
        )
        kept = torch.empty(self.num_draws, density.numel, dtype=density.dtype, device=model.device)
        start = 0
        for flat, _ in self._draws(
            posterior, density, None, fit_job.seed
        ):  # draws are made again rather than kept
            here = (picked >= start) & (picked < start + len(flat))
            kept[here] = flat[picked[here] - start]
            start += len(flat)
        evidence = float(torch.logsumexp(log_weights, 0)) - math.log(len(log_weights))
        row = {
            "epoch": fit_job.epochs,
            "log_evidence_estimate": evidence,
            "ess": effective(smoothed),
            "pareto_k": k if math.isfinite(k) else None,
        }
        fit_job.note(row)
        if not k < TRUSTED:
            warnings.warn(
                f"importance: the weights' Pareto k is {k:.2f} (above {TRUSTED}), "
                f"{row['ess']:.0f} of {len(log_weights)} draws count: "
                "the proposal is too far from the posterior; use a richer one, or 'hmc'.",
                stacklevel=4,
            )
        return of_draws(density, kept.unsqueeze(0), 1)

    def _proposal(self, model: Model, fit_job: FitJob) -> Posterior:
        if isinstance(self.proposal, Posterior):
            if fit_job.run is not None:
                fit_job.run.history(-1)
            return self.proposal
        return make_method(self.proposal, {}).fit(model, fit_job).posterior

    def _draws(
        self, posterior: Posterior, density: Density, target: FullBatch | None, seed: int
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Proposal draws ``(S, P)``, some at a time, with their log weights where a target is
        given.
        """
        size = max(1, min(1000, _BUDGET // density.numel))
        spread = [family for family in posterior.members if family.atoms is None]
        for start in range(0, self.num_proposals, size):
            with torch.no_grad():
                draws = posterior.realise(range(start, min(start + size, self.num_proposals)), seed)
                flat = density.layout.join(
                    {n: draws[n].to(density.dtype) for n in density.layout.shapes}
                )
                if target is None:
                    yield flat, flat.new_zeros(0)
                    continue
                prior, fit = target.parts(flat)
                near = torch.stack(
                    [f.log_prob({n: draws[n] for n in f.names}).double() for f in spread]
                ).sum(0)
                yield flat, prior + fit - near


def _check(posterior: Posterior, model: Model) -> None:
    """A proposal must have a density over the random parameters, and over nothing else."""
    shapes = {name: shape for family in posterior.members for name, shape in family.shapes.items()}
    for name, site in model.sites.items():
        if shapes.get(name) != site.shape:
            given = tuple(shapes[name]) if name in shapes else "nothing"
            raise CredoError(
                f"importance: the proposal has {given} where the model has {name!r} of shape "
                f"{tuple(site.shape)}; fit it to this model."
            )
    for family in posterior.members:
        drawn = set(family.names) & set(model.random)
        if family.atoms is not None and drawn:
            raise CredoError(
                f"importance needs a proposal with a density; {family.name!r} has none: use 'vi' "
                "or 'flow'."
            )
        extra = sorted(set(family.names) - set(model.random))
        if family.atoms is None and extra:
            raise CredoError(
                f"importance: the proposal also draws {', '.join(extra)}, which the model holds; "
                "fit one with the same random parameters."
            )
