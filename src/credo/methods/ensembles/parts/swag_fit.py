"""A Gaussian fitted to the path of an optimizer, for one member or several.

w = mean + sqrt(var / 2) z1 + D z2 / sqrt(2 (R - 1)), with mean and var along the path and D the
last R deviations from the mean; without D the variances count fully. Averages over the path are
plain, or exponential with the weight ``newest`` on the last epoch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from credo.core.errors import CredoError, SettingError
from credo.core.settings import setting
from credo.core.sites import by_dtype
from credo.engine.batchnorm import norms, statistics
from credo.engine.fit_job import FitJob, Fitted
from credo.engine.model import Model
from credo.engine.schedules import fall
from credo.methods.ensembles.parts.members import member_seeds, one, several
from credo.methods.ensembles.parts.members_fit import EnsembleMethod
from credo.methods.ensembles.parts.paths import PathMoments, Spread
from credo.posteriors import Family, LowRank, Mixture, Params, Posterior


@dataclass(frozen=True)
class PathMethod(EnsembleMethod):
    """Descend, then go on at a constant learning rate and gather."""

    lr: ClassVar[float] = 1e-2
    tolerance: ClassVar[float] = 0.2
    conformance_settings: ClassVar[dict[str, Any]] = {
        "epochs": 300,
        "batch_size": 16,
        "lr": 0.01,
        "start": 0.25,
    }
    exceptions: ClassVar[dict[str, str]] = {
        "conjugate_covariance": "the spread is that of the optimizer's path, which only by chance "
        "is that of the posterior"
    }

    optimizer: str = setting("sgd", "What moves the weights.", choices=("adam", "sgd"))
    start: float = setting(
        0.75, "Share of the epochs before weights are gathered.", ge=0.0, le=0.99
    )
    swa_lr: float = setting(
        0.5, "Constant learning rate while they are gathered, as a share of lr.", gt=0.0
    )
    covariance: str = setting("low_rank", "Of the Gaussian.", choices=("low_rank", "diagonal"))
    rank: int = setting(20, "Deviations kept for the low-rank part.", ge=2)
    average: str = setting(
        "plain",
        "Of weights over epochs: 'plain', or 'exponential' with weight newest on the last.",
        choices=("plain", "exponential"),
    )
    newest: float = setting(
        0.05, "Least weight of the newest epoch in the exponential average.", gt=0.0, le=1.0
    )
    draws: int = setting(
        30,
        "Draws kept where batch normalisation needs statistics for each; otherwise any number is "
        "drawn.",
        ge=2,
    )

    def course(self, progress: float) -> float:
        """The factor of the learning rate: it falls to ``swa_lr`` and stays there."""
        share = min(progress / self.start, 1.0) if self.start else 1.0
        return (
            self.swa_lr + (1.0 - self.swa_lr) * fall(share)
            if self.lr_schedule == "cosine" or share == 1.0
            else 1.0
        )

    def gather(self, model: Model, fit_job: FitJob, members: int) -> Fitted:
        """Fit the members and the Gaussians of their paths."""
        count = sum(epoch / fit_job.epochs >= self.start for epoch in range(fit_job.epochs))
        if count < 2:
            raise SettingError(
                f"epochs={fit_job.epochs} with start={self.start} leaves {count} to gather; it "
                "takes 2: more epochs or an earlier start."
            )
        trace = PathMoments(
            self.start,
            self.rank if self.covariance == "low_rank" else 0,
            self.newest if self.average == "exponential" else 0.0,
        )
        flock = self.flock(model, fit_job, members, trace)
        last = self.train(flock, fit_job, self.course)
        if int(trace.seen) < 2:
            raise CredoError(
                f"A callback stopped {self.name} after {int(trace.seen)} gathered epochs; it "
                "takes 2."
            )
        spreads = [trace.spread(flock, k) for k in range(members)]
        _speak(model, spreads)
        if norms(model.net):
            return Fitted(self._with_statistics(model, fit_job, spreads), last.buffers)
        if members == 1:
            return Fitted(
                model.with_points(_gaussians(model, spreads[0]), spreads[0].values), last.buffers
            )
        parts = [
            Posterior([*_gaussians(model, s), *one(model, s.values, s.voices)]) for s in spreads
        ]
        return Fitted(Posterior([Mixture.of(parts)]), last.buffers)

    def _with_statistics(self, model: Model, fit_job: FitJob, spreads: list[Spread]) -> Posterior:
        """Draws, each with the statistics that its weights have on the training data."""
        each = max(self.draws // len(spreads), 1)
        rows: list[tuple[Params, Params]] = []
        for seed, spread in zip(member_seeds(fit_job.seed, len(spreads)), spreads, strict=True):
            drawn = Posterior(_gaussians(model, spread)).sample(each, seed=seed)
            rows += [
                (
                    {n: drawn[n][i] if n in drawn else v for n, v in spread.values.items()},
                    spread.voices,
                )
                for i in range(each)
            ]
        values = {n: torch.stack([row[0][n] for row in rows]) for n in spreads[0].values}
        voices = (
            {n: torch.stack([row[1][n] for row in rows]) for n in spreads[0].voices}
            if len(spreads) > 1
            else {}
        )
        return several(model, values, voices, statistics(model, fit_job, (row[0] for row in rows)))


def _gaussians(model: Model, spread: Spread) -> list[Family]:
    """One Gaussian over the random parameters of each type."""
    out: list[Family] = []
    for sites in by_dtype(model.random):
        names = [site.name for site in sites]
        columns = len(spread.deviations[names[0]])
        scale = 2.0 if columns else 1.0
        std = {n: (spread.variances[n] / scale).sqrt() for n in names}
        factor = (
            {n: spread.deviations[n] / math.sqrt(2.0 * (columns - 1)) for n in names}
            if columns
            else None
        )
        out.append(LowRank.of_moments({n: spread.values[n] for n in names}, std, factor))
    return out


@torch.no_grad()
def _speak(model: Model, spreads: list[Spread]) -> None:
    """The likelihood takes the noise averaged over the path, and over members."""
    for name in spreads[0].voices:
        model.likelihood.get_parameter(name).copy_(
            torch.stack([s.voices[name] for s in spreads]).mean(0)
        )
