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

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from credo.core.settings import setting
from credo.curvature.log_evidence import log_evidence, prior_at_mode
from credo.curvature.structures import STRUCTURES, Measured
from credo.curvature.sweep import Sweep
from credo.engine.fit_job import FitJob
from credo.engine.method import Method, methods
from credo.engine.model import Fitted, Model
from credo.engine.step import descend
from credo.engine.training_loop import DescentSettings, decays
from credo.methods.laplace.parts.mode import Mode, trained_before
from credo.methods.laplace.parts.prior_tuning import TUNINGS, Tuning
from credo.methods.laplace.parts.subsets import Subset, subset_of

SHARPER = (8.0, 64.0, 512.0)  #: values of ``sharpness`` to try on held-out rows


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
    tries: ClassVar[bool] = True
    trial_share: ClassVar[float] = 0.25
    target: ClassVar[str] = "exact"
    tolerance: ClassVar[float] = 0.01
    afterwards: ClassVar[str | None] = "the curvature at the mode, which takes a pass over the data"
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
        "Which curvature: generalised Gauss-Newton, or the Fisher matrix of observed "
        "('empirical') or drawn ('mc') targets.",
        choices=("ggn", "empirical", "mc"),
    )
    mc_samples: int = setting(1, "Drawn targets per example, for curvature='mc'.", ge=1)
    rank: int = setting(20, "Eigenvalues of the low-rank form.", ge=1)
    tune: str | None = setting(
        None,
        "Prior width: as given ('none'), by the evidence after training, by it while training "
        "('online'), or by validation data; None is 'online' where it trains, else 'evidence'.",
        kind=str,
        choices=("none", "evidence", "online", "validation"),
    )
    sharpness: float | None = setting(
        None,
        "Factor on the tuned precision in the posterior, which narrows it around the same mode; "
        "None is 1, or what predicts held-out rows best where a trial is made.",
        gt=0.0,
        kind=(int, float),
    )
    per: str = setting(
        "global",
        "Prior widths that are tuned: one, one per layer, or one per tensor.",
        choices=("global", "layer", "tensor"),
    )
    every: int = setting(
        10,
        "Epochs between two computations of the curvature, for tune='online', or more where no "
        "epochs are given: 60 computations at most.",
        ge=1,
    )
    predictive: str = setting(
        "linear",
        "What predictions are made from: the linearised network, its probit approximation, "
        "or drawn weights.",
        choices=("linear", "probit", "weights"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._subset()  # refuses settings that do not go together

    @property
    def shortcut(self) -> str | None:
        return None if self.predictive == "weights" else self.predictive

    def alternatives(self, model: Model) -> Mapping[str, Sequence[Any]]:
        """The evidence finds the width; with far more weights than data it may be too narrow for
        the mode, and the linearised posterior under it too wide. A network that is trained already
        has seen the rows that would be held out.
        """
        if not self.train:
            return {"prior": ()}
        sharper = SHARPER if self.sharpness is None and self.tune != "validation" else ()
        return {"prior": (), "sharpness": sharper, "tune": ("none",) if self.tune is None else ()}

    def for_trial(self) -> Self:
        """The evidence is asked less often."""
        return replace(self, every=4 * self.every)

    def given(self, model: Model, seed: int) -> Mapping[str, Tensor]:
        """Masks, and without training the network's own values, which are what is fitted to."""
        start = {} if self.train else model.start_values(self.init, seed)
        return {**self._subset().given(), **start}

    def adapt(self, model: Model) -> Model:
        """Only the subset is random; a width that is tuned is not the user's prior any more."""
        return self._tuning().adapt(self._subset().narrow(model), self.per)

    def fit(self, model: Model, fit_job: FitJob) -> Fitted:
        """Find the mode, measure the curvature there, tune the prior, and give the Gaussian."""
        tuning = self._tuning()
        tuning.check(model, fit_job, self.train)
        self._subset().check(self.structure, model)
        values = model.start_values(self.init, fit_job.seed)
        find_mode = self._train if self.train else trained_before
        mode = find_mode(model, fit_job, values)
        started = time.perf_counter()
        measured = tuning.tune(mode, self.measure(mode))
        prior = prior_at_mode(model, mode.values, measured)
        evidence = float(log_evidence(measured.blocks, measured.nll, prior))
        sharper = {n: (self.sharpness or 1.0) * p for n, p in prior.precision.items()}
        posterior = measured.posterior(model, mode.values, sharper)
        row = {"epoch": fit_job.next_epoch, "nll": measured.nll}
        row |= {"kl": -evidence - measured.nll, "elbo": evidence, "log_evidence": evidence}
        fit_job.note(row | {"seconds": time.perf_counter() - started} | fit_job.ended)
        return Fitted(posterior, mode.buffers)

    def _train(self, model: Model, fit_job: FitJob, values: dict[str, Tensor]) -> Mode:
        """The maximum of the joint density, by descent."""
        start, decay = model.point_posterior(values), decays[self.lr_schedule]
        with self._tuning().objective(model, fit_job, start) as elbo:
            fitted = descend(elbo, fit_job, decay=decay, compile=self.compile)
        values = {n: v.detach() for n, v in fitted.posterior.mean().items()}
        return Mode(model, values, fitted.buffers, fit_job)

    @torch.no_grad()
    def measure(self, mode: Mode, before: Measured | None = None) -> Measured:
        """The curvature at the mode; single weights that were chosen ``before`` stay chosen."""
        sweep = Sweep(*mode, self.curvature, self.mc_samples)
        return self._subset().measure(self.structure, sweep, self.rank, before)

    def _subset(self) -> Subset:
        return subset_of(self.subset, self.size, self.structure)

    def _tuning(self) -> Tuning:
        tells_noise = STRUCTURES[self.structure].tells_noise
        tune = self.tune or ("online" if self.train else "evidence")
        return TUNINGS[tune](self.measure, tells_noise, self.shortcut, self.every)
