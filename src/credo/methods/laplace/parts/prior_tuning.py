"""How the width of Laplace's prior is tuned: not at all, by the evidence after training or while
training, or by validation data.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor, nn

from credo.core.errors import SettingError
from credo.curvature.log_evidence import (
    GRID,
    best_log_factors,
    best_prior_and_noise,
    elementwise_prior,
    prior_at_mode,
)
from credo.curvature.structures import Measured
from credo.data.source import Source
from credo.engine.elbo import Elbo
from credo.engine.fit_job import FitJob
from credo.engine.model import Model
from credo.engine.outputs import Draws, sampled_outputs
from credo.estimators import estimators
from credo.methods.laplace.parts.mode import Mode
from credo.posteriors import Params, Posterior
from credo.predictive import Predictive
from credo.predictive.shortcuts import shortcut_named
from credo.priors import Scaled

POINTS = 64  # that stand for a prediction while widths are compared on validation data
RENEWALS = 60  # of the prior in a fit whose length is not given, at most


@dataclass(frozen=True)
class Tuning(ABC):
    """One value of the setting ``tune``.

    ``measure(mode, before)``: the curvature. ``tells_noise``: whether the evidence of its form can
    tell noise from what the network explains. ``shortcut``: how predictions are made. ``every``:
    epochs between two measurements while training.
    """

    measure: Callable[..., Measured]
    tells_noise: bool
    shortcut: str | None
    every: int

    def adapt(self, model: Model, per: str) -> Model:
        """The model with a prior whose width can be set; an earlier posterior stays as it is."""
        prior = model.prior
        if prior.tunable is not None or prior.earlier_posterior is not None:
            return model
        if prior.parts():
            raise SettingError(
                f"laplace tunes the prior's width itself; {prior.describe()!r} is learned "
                "already: use tune='none'."
            )
        return replace(model, prior=Scaled(prior, per))

    def check(self, model: Model, fit_job: FitJob, train: bool) -> None:
        """Refuse what cannot end well whatever the data are: a prior without the width to tune, or
        a likelihood without the prediction asked for.
        """
        if model.prior.tunable is not None:
            for name in model.random:
                model.prior.at(model.sites[name])
        if self.shortcut == "probit":
            model.likelihood.softened(torch.zeros(1, 1), torch.zeros(1, 1))

    def objective(
        self, model: Model, fit_job: FitJob, start: Posterior
    ) -> AbstractContextManager[Elbo]:
        """What training minimises, while the context is open."""
        return nullcontext(Elbo(model, start, estimators["weights"]))

    @abstractmethod
    def tune(self, mode: Mode, measured: Measured) -> Measured:
        """Set the prior's width, and noise that is tuned with it; the curvature afterwards."""


@final
class Untuned(Tuning):
    """The width as it is given."""

    def adapt(self, model: Model, per: str) -> Model:
        return model

    def tune(self, mode: Mode, measured: Measured) -> Measured:
        return measured


@final
class ByEvidence(Tuning):
    """Once, after training."""

    def tune(self, mode: Mode, measured: Measured) -> Measured:
        """Normal noise that is learned is tuned too, and the curvature measured again with it."""
        model, prior = mode.model, mode.model.prior.tunable
        if prior is None:
            return measured
        at_mode = elementwise_prior(model, mode.values, untuned=True, places=measured.chosen)
        sharing = [[n for n in names if n in at_mode.precision] for names in prior.groups()]
        sharing = [names for names in sharing if names]
        likelihood, source = model.likelihood, mode.fit_job.source
        width = likelihood.num_outputs(likelihood.check_targets(source.targets()))
        noise = likelihood.noise_terms(measured.nll, source.num_data, width)
        if noise is None or not self.tells_noise:
            prior.set(best_log_factors(measured.blocks, measured.nll, at_mode, sharing))
            return measured
        best = best_prior_and_noise(measured.blocks, measured.nll, at_mode, sharing, noise)
        prior.set(best.log_factors)
        likelihood.widen_noise(math.exp(-0.5 * best.noise_log_factor))
        return self.measure(mode, measured)


@final
class Online(Tuning):
    """By the evidence, every few epochs while training and once after it."""

    def check(self, model: Model, fit_job: FitJob, train: bool) -> None:
        if not train:
            raise SettingError(
                "laplace: tune='online' happens while training; with train=False use "
                "tune='evidence'."
            )
        super().check(model, fit_job, train)

    @contextmanager
    def objective(self, model: Model, fit_job: FitJob, start: Posterior) -> Iterator[Elbo]:
        """Training leaves learned noise alone where the evidence sets it."""
        if model.prior.tunable is None:
            yield Elbo(model, start, estimators["weights"])
            return

        def renew(values: Params, buffers: Mapping[str, Tensor]) -> None:
            mode = Mode(model, values, buffers, fit_job)
            self.tune(mode, self.measure(mode))

        likelihood = model.likelihood
        by_evidence = self.tells_noise and likelihood.noise_terms(0.0, 1, 1) is not None
        with not_trained(likelihood.parameters() if by_evidence else ()):
            most = fit_job.epochs // RENEWALS if fit_job.settles else 0
            yield OnlineElbo(model, start, renew, max(self.every, most))

    def tune(self, mode: Mode, measured: Measured) -> Measured:
        evidence = ByEvidence(self.measure, self.tells_noise, self.shortcut, self.every)
        return evidence.tune(mode, measured)


@final
class ByValidation(Tuning):
    """The factor on the prior's precision, one for all, whose predictions of validation data are
    best.
    """

    def check(self, model: Model, fit_job: FitJob, train: bool) -> None:
        if fit_job.validation is None:
            raise SettingError("laplace: tune='validation' needs validation=(x, y) in fit.")
        super().check(model, fit_job, train)

    def tune(self, mode: Mode, measured: Measured) -> Measured:
        prior, validation = mode.model.prior.tunable, mode.fit_job.validation
        if prior is not None and validation is not None:
            choose_by_validation(mode, prior, validation, measured, self.shortcut)
        return measured


TUNINGS: dict[str, type[Tuning]] = {
    "none": Untuned,
    "evidence": ByEvidence,
    "online": Online,
    "validation": ByValidation,
}


class OnlineElbo(Elbo):
    """A point estimate whose prior is renewed every few epochs (Immer et al. 2021)."""

    def __init__(
        self,
        model: Model,
        posterior: Posterior,
        renew: Callable[[Params, Mapping[str, Tensor]], None],
        every: int,
    ) -> None:
        super().__init__(model, posterior, estimators["weights"])
        self._renew, self._every = renew, every

    def after_epoch(self, epoch: int, epochs: int) -> None:
        """Not after the last epochs: the weights must still come to rest under the prior that
        stays.
        """
        if (epoch + 1) % self._every == 0 and epoch + 1 <= 0.9 * epochs:
            values = {n: v.detach().clone() for n, v in self.posterior.mean().items()}
            self._renew(values, self.buffers_.tensors())


@contextmanager
def not_trained(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """While the context is open, training does not move these parameters."""
    moved = [parameter for parameter in parameters if parameter.requires_grad]
    for parameter in moved:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in moved:
            parameter.requires_grad_(True)


def choose_by_validation(
    mode: Mode, prior: Scaled, validation: Source, measured: Measured, shortcut: str | None
) -> None:
    """Set the prior to the factor with the smallest negative log-likelihood of validation data."""
    best_nll, best_factor = math.inf, 0.0
    for factor in GRID[::2].tolist():
        _set_all(prior, factor)
        precision = prior_at_mode(mode.model, mode.values, measured).precision
        posterior = measured.posterior(mode.model, mode.values, precision)
        nll = validation_nll(mode, validation, posterior, shortcut)
        if nll < best_nll:
            best_nll, best_factor = nll, factor
    _set_all(prior, best_factor)


def _set_all(prior: Scaled, factor: float) -> None:
    prior.set({n: torch.as_tensor(factor) for names in prior.groups() for n in names})


def validation_nll(
    mode: Mode, validation: Source, posterior: Posterior, shortcut: str | None
) -> float:
    """Negative log-likelihood of validation data, summed, as the method predicts them."""
    model, buffers = mode.model, mode.buffers
    total = 0.0
    for x, y in validation(None, 1000):
        outputs: Any
        if shortcut is None:
            outputs, _ = sampled_outputs(model, Draws.of(posterior, POINTS, 0), x, buffers, 0)
        else:
            predict = shortcut_named(shortcut).outputs
            outputs = predict(model, posterior, x, buffers, POINTS, batch_size=None)
        predictive = Predictive(outputs, model.likelihood)
        total -= float(predictive.log_prob(y.to(outputs.device)).double().sum())
    return total
