"""Laplace's approximation: N(w*, (H + D)^-1) at the maximum w* of the joint density, H the
curvature of the log-likelihood, D of the prior.

H is the generalised Gauss-Newton matrix sum_n J_n^T Lambda_n J_n, always positive semidefinite, or
a Fisher matrix, in one of four forms: its diagonal, Kronecker factors of every layer, its largest
eigenvalues, or all of it; of all weights, of some layers, or of single weights. The network is then
linear in its weights as far as the posterior can tell, so predictions are those of the linearised
network unless asked otherwise. The log evidence comes with it and tunes the prior's width, and
learned normal noise. Describes one mode only; knows nothing of what is beyond it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from credo.core.errors import SettingError
from credo.core.settings import setting
from credo.curvature.centred_prior import centred
from credo.curvature.log_evidence import best_scales, best_widths, log_evidence
from credo.curvature.structures import STRUCTURES, Measured
from credo.curvature.sweep import Sweep
from credo.engine.elbo_fit import descend, point_fit
from credo.engine.fit_job import FitJob, Fitted
from credo.engine.method import Method, methods
from credo.engine.model import Model
from credo.engine.schedules import decays
from credo.engine.training_loop import DescentSettings
from credo.methods.laplace.parts.laplace_fit import (
    OnlineElbo,
    choose_by_validation,
    fit_noise,
    gaussian_posterior,
    held_fixed,
    prior_seen,
)
from credo.methods.laplace.parts.subsets import Subset, subset_of
from credo.posteriors import Params, PosteriorPrior
from credo.priors import Scaled


@methods.register("laplace")
@dataclass(frozen=True)
class Laplace(Method, DescentSettings):
    """A Gaussian from the curvature at a trained network."""

    name: ClassVar[str] = "laplace"
    summary: ClassVar[str] = (
        "Gaussian from the curvature at the mode; also for a network that is trained already."
    )
    reference: ClassVar[str] = (
        "MacKay 1992; Ritter et al. 2018; Immer et al. 2021; Daxberger et al. 2021, Laplace "
        "redux, and Subnetwork inference."
    )
    target: ClassVar[str] = "exact"
    tolerance: ClassVar[float] = 0.01
    conformance_settings: ClassVar[dict[str, Any]] = {
        "epochs": 500,
        "batch_size": None,
        "lr": 0.1,
        "structure": "full",
        "tune": "none",
    }

    structure: str = setting(
        "kfac",
        "Form of the curvature: its diagonal, Kronecker factors of each layer, its largest "
        "eigenvalues, or all of it.",
        choices=("diagonal", "kfac", "low_rank", "full"),
    )
    subset: Any = setting(
        "all",
        "Which layers are random: 'all', 'last', or name patterns; or single weights: "
        "'largest_variance', 'largest_magnitude', or masks by name.",
        kind=(str, tuple, list, Mapping),
    )
    size: int | None = setting(
        None,
        "Single weights kept, for subset='largest_variance' and 'largest_magnitude'.",
        kind=int,
        ge=1,
    )
    train: bool = setting(
        True,
        "Train first; False for a network that is trained already: nothing but its curvature is "
        "measured.",
    )
    curvature: str = setting(
        "ggn",
        "Generalised Gauss-Newton, or the Fisher matrix of observed ('empirical') or drawn ('mc') "
        "targets.",
        choices=("ggn", "empirical", "mc"),
    )
    mc_samples: int = setting(1, "Drawn targets per example, for curvature='mc'.", ge=1)
    rank: int = setting(20, "Eigenvalues of the low-rank form.", ge=1)
    tune: str = setting(
        "evidence",
        "Prior width: as given ('none'), by the evidence after training, by it while training "
        "('online'), or by validation data.",
        choices=("none", "evidence", "online", "validation"),
    )
    per: str = setting(
        "global",
        "Prior widths that are tuned: one, one per layer, or one per tensor.",
        choices=("global", "layer", "tensor"),
    )
    every: int = setting(10, "Epochs between two looks at the curvature, for tune='online'.", ge=1)
    predictive: str = setting(
        "linear",
        "Predictions: of the linearised network, its probit approximation, or of drawn weights.",
        choices=("linear", "probit", "weights"),
    )

    @property
    def shortcut(self) -> str | None:
        """As ``predictive`` says."""
        return None if self.predictive == "weights" else self.predictive

    def __post_init__(self) -> None:
        super().__post_init__()
        self._subset()  # refuses settings that do not go together

    def _subset(self) -> Subset:
        return subset_of(self.subset, self.size, self.structure)

    def given(self, model: Model, seed: int) -> Mapping[str, Tensor]:
        """Without training the network's values are what is fitted to; and masks, if there are
        any.
        """
        return dict(self._subset().given()) | (
            {} if self.train else model.start_values(self.init, seed)
        )

    def adapt(self, model: Model) -> Model:
        """Only the subset is random; a width that is tuned is not the user's prior any more."""
        model = self._subset().narrow(model)
        if self.tune == "none" or isinstance(model.prior, (PosteriorPrior, Scaled)):
            return model
        if model.prior.parts():
            raise SettingError(
                f"laplace tunes the prior's width itself; {model.prior.describe()!r} is learned "
                "already: use tune='none'."
            )
        return replace(model, prior=Scaled(model.prior, self.per))

    def fit(self, model: Model, fit_job: FitJob) -> Fitted:
        """Train unless told otherwise, measure the curvature, tune the prior, and give the
        Gaussian.
        """
        if self.tune == "validation" and fit_job.validation is None:
            raise SettingError("laplace: tune='validation' needs validation=(x, y) in fit.")
        if self.tune == "online" and not self.train:
            raise SettingError(
                "laplace: tune='online' happens while training; with train=False use "
                "tune='evidence'."
            )
        self._subset().check(self.structure, model)
        if isinstance(model.prior, Scaled):
            for name in model.random:
                model.prior.at(model.sites[name])  # refuses one that has no width
        if self.predictive == "probit":
            model.likelihood.softened(
                torch.zeros(1, 1), torch.zeros(1, 1)
            )  # likewise one without labels
        values = model.start_values(self.init, fit_job.seed)
        if self.train:
            fitted = self._descend(model, fit_job, values)
        else:
            fitted = Fitted(model.point_posterior(values), model.buffers())
            if fit_job.run is not None:
                fit_job.run.history(-1)
            fit_noise(model, fit_job, values, fitted.buffers)
        started = time.perf_counter()
        values = {n: v.detach() for n, v in fitted.posterior.mean().items()}
        measured = self.measure(model, fit_job, values, fitted.buffers)
        measured = self._tune(model, fit_job, values, fitted.buffers, measured)
        prior = prior_seen(model, values, measured)
        evidence = float(log_evidence(measured.blocks, measured.nll, prior))
        posterior = gaussian_posterior(model, values, measured.blocks, prior.precision)
        row = {
            "epoch": fit_job.epochs if self.train else 0,
            "nll": measured.nll,
            "kl": -evidence - measured.nll,
            "elbo": evidence,
        }
        fit_job.note(row | {"log_evidence": evidence, "seconds": time.perf_counter() - started})
        return Fitted(posterior, fitted.buffers)

    def _descend(self, model: Model, fit_job: FitJob, values: dict[str, Tensor]) -> Fitted:
        start = model.point_posterior(values)
        if self.tune != "online" or not isinstance(model.prior, Scaled):
            return point_fit(model, fit_job, start, descent=self)

        def renew(values: Params, buffers: Mapping[str, Tensor]) -> None:
            self._by_evidence(
                model, fit_job, values, buffers, self.measure(model, fit_job, values, buffers)
            )

        told = (
            STRUCTURES[self.structure].noise and model.likelihood.noise_terms(0.0, 1, 1) is not None
        )
        with held_fixed(model.likelihood.parameters() if told else ()):  # the evidence sets it
            return descend(
                OnlineElbo(model, start, renew, self.every),
                fit_job,
                decay=decays[self.lr_schedule],
                compile=self.compile,
            )

    def measure(
        self,
        model: Model,
        fit_job: FitJob,
        values: Params,
        buffers: Mapping[str, Tensor],
        before: Measured | None = None,
    ) -> Measured:
        """The curvature at these weights; single ones that were chosen ``before`` are not chosen
        again.
        """
        sweep = Sweep(model, values, buffers, fit_job, self.curvature, self.mc_samples)
        with torch.no_grad():
            return self._subset().measure(self.structure, sweep, self.rank, before)

    def _tune(
        self,
        model: Model,
        fit_job: FitJob,
        values: Params,
        buffers: Mapping[str, Tensor],
        measured: Measured,
    ) -> Measured:
        if not isinstance(model.prior, Scaled) or self.tune == "none":
            return measured
        if self.tune == "validation" and fit_job.validation is not None:
            choose_by_validation(
                model, fit_job.validation, values, buffers, measured, self.shortcut
            )
            return measured
        return self._by_evidence(model, fit_job, values, buffers, measured)

    def _by_evidence(
        self,
        model: Model,
        fit_job: FitJob,
        values: Params,
        buffers: Mapping[str, Tensor],
        measured: Measured,
    ) -> Measured:
        """Set the prior's width, and normal noise that is learned; the curvature afterwards."""
        assert isinstance(model.prior, Scaled)
        prior = centred(model, values, base=True, places=measured.chosen)
        groups = [
            [name for name in group if name in prior.precision] for group in model.prior.groups()
        ]
        groups = [group for group in groups if group]
        width = model.likelihood.num_outputs(
            model.likelihood.check_targets(fit_job.source.targets())
        )
        noise = model.likelihood.noise_terms(measured.nll, fit_job.source.num_data, width)
        if noise is None or not STRUCTURES[self.structure].noise:
            model.prior.set(best_scales(measured.blocks, measured.nll, prior, groups))
            return measured
        widths = best_widths(measured.blocks, measured.nll, prior, groups, noise)
        model.prior.set(widths.scales)
        model.likelihood.widen_noise(math.exp(-0.5 * widths.gain))
        return self.measure(model, fit_job, values, buffers, measured)
