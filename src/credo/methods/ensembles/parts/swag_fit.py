"""A Gaussian fitted to the path of an optimizer, for one member or several.

w = mean + sqrt(var / 2) z1 + D z2 / sqrt(2 (R - 1)), with mean and var along the path and D the
last R deviations from the mean; without D the variances count fully. Averages over the path are
plain, or exponential with the weight ``newest`` on the last epoch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from credo.core.errors import CredoError, SettingError
from credo.core.settings import setting
from credo.core.sites import by_dtype
from credo.engine.batchnorm import norms, statistics
from credo.engine.fit_job import FitJob
from credo.engine.model import Model
from credo.engine.training_loop import fall
from credo.methods.ensembles.parts.member_points import equal_points, fixed_points
from credo.methods.ensembles.parts.members import member_seeds
from credo.methods.ensembles.parts.training_path import PathMoments, RunningMoments
from credo.posteriors import Family, LowRank, Mixture, Params, Posterior

STEPS = 3_000  #: at most, where no epochs are given: the path has no end that could be seen


@dataclass(frozen=True)
class SwagSettings:
    """How long a path is followed and which Gaussian is fitted to it. A method mixes them in before
    ``MemberSettings``, so that ``optimizer`` is this one.
    """

    optimizer: str = setting("adam", "Optimizer of the weights.", choices=("adam", "sgd"))
    start: float = setting(
        0.75, "Share of the epochs before weights are gathered.", ge=0.0, le=0.99
    )
    swa_lr: float = setting(
        0.5, "Constant learning rate while they are gathered, as a share of lr.", gt=0.0
    )
    covariance: str = setting(
        "low_rank", "Form of the Gaussian's covariance.", choices=("low_rank", "diagonal")
    )
    rank: int = setting(20, "Deviations kept for the low-rank part.", ge=2)
    average: str = setting(
        "plain",
        "Average of weights over epochs: 'plain', or 'exponential', in which the last epoch has "
        "the weight given by newest.",
        choices=("plain", "exponential"),
    )
    newest: float = setting(
        0.05, "Least weight of the newest epoch in the exponential average.", gt=0.0, le=1.0
    )
    num_draws: int = setting(
        30,
        "Draws kept where batch normalisation needs statistics for each; otherwise any number is "
        "drawn.",
        ge=2,
        formerly="draws",
    )


def gathered_moments(settings: SwagSettings, fit_job: FitJob) -> RunningMoments:
    """What the path gathers: moments over the last epochs, of which there must be two."""
    epochs, start = fit_job.epochs, settings.start
    count = sum(epoch / epochs >= start for epoch in range(epochs))
    if count < 2:
        raise SettingError(
            f"epochs={epochs} with start={start} leaves {count} to gather; it "
            "takes 2: more epochs or an earlier start."
        )
    return RunningMoments(
        start,
        settings.rank if settings.covariance == "low_rank" else 0,
        settings.newest if settings.average == "exponential" else 0.0,
    )


def swag_schedule(settings: SwagSettings, lr_schedule: str) -> Callable[[float], float]:
    """The factor of the learning rate by the progress of the fit: it falls to ``swa_lr`` until
    weights are gathered, and stays there.
    """

    def factor(progress: float) -> float:
        share = min(progress / settings.start, 1.0) if settings.start else 1.0
        return (
            settings.swa_lr + (1.0 - settings.swa_lr) * fall(share)
            if lr_schedule == "cosine" or share == 1.0
            else 1.0
        )

    return factor


def swag_posterior(
    model: Model, fit_job: FitJob, path: RunningMoments, members: int, draws: int
) -> Posterior:
    """A Gaussian for each member, equally likely; draws of them where batch normalisation needs
    statistics for each.
    """
    if int(path.seen) < 2:
        raise CredoError(
            f"A callback stopped the fit after {int(path.seen)} gathered epochs; it takes 2."
        )
    moments = [path.of_member(k) for k in range(members)]
    _average_likelihood(model, moments)
    if norms(model.net):
        return _with_statistics(model, fit_job, moments, draws)
    if members == 1:
        return model.with_points(_gaussians(model, moments[0]), moments[0].values)
    parts = [
        Posterior([*_gaussians(model, m), *fixed_points(model, m.values, m.likelihood_params)])
        for m in moments
    ]
    return Posterior([Mixture.of(parts)])


def _gaussians(model: Model, moments: PathMoments) -> list[Family]:
    """One Gaussian over the random parameters of each type."""
    out: list[Family] = []
    for sites in by_dtype(model.random):
        names = [site.name for site in sites]
        columns = len(moments.deviations[names[0]])
        scale = 2.0 if columns else 1.0
        std = {n: (moments.variances[n] / scale).sqrt() for n in names}
        factor = (
            {n: moments.deviations[n] / math.sqrt(2.0 * (columns - 1)) for n in names}
            if columns
            else None
        )
        out.append(LowRank.of_moments({n: moments.values[n] for n in names}, std, factor))
    return out


def _with_statistics(
    model: Model, fit_job: FitJob, moments: Sequence[PathMoments], draws: int
) -> Posterior:
    """Draws, each with the statistics that its weights have on the training data."""
    each = max(draws // len(moments), 1)
    rows: list[tuple[Params, Params]] = []
    for seed, member in zip(member_seeds(fit_job.seed, len(moments)), moments, strict=True):
        drawn = Posterior(_gaussians(model, member)).sample(each, seed=seed)
        rows += [
            (
                {n: drawn[n][i] if n in drawn else v for n, v in member.values.items()},
                member.likelihood_params,
            )
            for i in range(each)
        ]
    values = {n: torch.stack([row[0][n] for row in rows]) for n in moments[0].values}
    likelihood_params = (
        {n: torch.stack([row[1][n] for row in rows]) for n in moments[0].likelihood_params}
        if len(moments) > 1
        else {}
    )
    found = statistics(model, fit_job, (row[0] for row in rows))
    return equal_points(model, values, likelihood_params, found)


@torch.no_grad()
def _average_likelihood(model: Model, moments: Sequence[PathMoments]) -> None:
    """The likelihood takes its parameters averaged over the path, and over members."""
    for name in moments[0].likelihood_params:
        model.likelihood.get_parameter(name).copy_(
            torch.stack([m.likelihood_params[name] for m in moments]).mean(0)
        )
