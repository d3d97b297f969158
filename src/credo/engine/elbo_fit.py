"""What all variational methods share: one objective, one loop, and the settings of its KL."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import torch

from credo.core.errors import SettingError
from credo.core.settings import setting
from credo.engine.descent import GradientMethod
from credo.engine.elbo import Elbo
from credo.engine.fit_job import FitJob, Fitted
from credo.engine.initial_posterior import discrete_posterior, start_posterior
from credo.engine.model import Model
from credo.engine.schedules import schedules
from credo.engine.training_loop import MakeOptimizer
from credo.estimators import Estimator
from credo.posteriors import Posterior, PosteriorPrior
from credo.priors import Fixed, log_uniform


def log_uniform_over(model: Model, names: Collection[str], method: str) -> Model:
    """The model with only these parameters random, under the log-uniform prior; not after an
    earlier posterior, which that would forget.
    """
    if isinstance(model.prior, PosteriorPrior):
        raise SettingError(
            f"{method}: update would forget the earlier data, since its prior is log-uniform "
            "whatever came before; fit all data at once."
        )
    return replace(model.only(names), prior=Fixed(log_uniform()))


@dataclass(frozen=True)
class ElboMethod(GradientMethod):
    """A family, an estimator, and the descent on the negative ELBO; a method says which."""

    train_samples: int = setting(1, "Draws per step, averaged.", ge=1)
    beta: float = setting(1.0, "Weight of the KL; other than 1 tempers the posterior.", gt=0.0)
    kl_schedule: str = setting(
        "constant",
        "Course of the KL's weight.",
        choices=("constant", "linear", "cosine", "late", "blundell"),
    )
    kl_warmup: int = setting(
        0, "Epochs over which 'linear', 'cosine' and 'late' rise to beta.", ge=0
    )
    autocast: bool = setting(False, "Run the network in bfloat16 where torch deems it safe.")

    @abstractmethod
    def make_posterior(self, model: Model, fit_job: FitJob) -> Posterior:
        """Where q starts."""

    @abstractmethod
    def make_estimator(self) -> Estimator:
        """How noise enters."""

    def make_optimizer(self, model: Model) -> MakeOptimizer[Elbo] | None:
        """Another optimizer than Adam, if any."""
        return None

    def kl_kind(self) -> str:
        """How the objective gets its KL."""
        return "closed"

    def finish(self, model: Model, fit_job: FitJob, fitted: Fitted) -> Fitted:
        """What follows the descent; nothing unless a method says otherwise."""
        return fitted

    def fit(self, model: Model, fit_job: FitJob) -> Fitted:
        """Descend on the negative ELBO."""
        posterior, estimator = self.make_posterior(model, fit_job), self.make_estimator()
        for component in posterior.components():
            estimator.check(component)
        autocast = torch.bfloat16 if self.autocast else None
        elbo = Elbo(
            model, posterior, estimator, self.train_samples, autocast=autocast, kl=self.kl_kind()
        )
        weight = {
            "beta": self.beta,
            "schedule": schedules[self.kl_schedule],
            "warmup": self.kl_warmup,
        }
        return self.finish(
            model,
            fit_job,
            self.descend(elbo, fit_job, optimizer=self.make_optimizer(model), **weight),
        )


@dataclass(frozen=True)
class Variational(ElboMethod):
    """A family of densities over weights, which has a spread to start from."""

    init_std: float = setting(0.01, "Initial standard deviation of every weight.", gt=0.0)
    kl: str = setting(
        "closed", "KL in closed form where known, or always sampled.", choices=("closed", "sampled")
    )

    def kl_kind(self) -> str:
        """As the user says."""
        return self.kl


@dataclass(frozen=True)
class OfAnyFamily(Variational):
    """A variational method that leaves the family of q to the user."""

    posterior: str = setting(
        "mean_field", "Family of q.", choices=("mean_field", "low_rank", "kron", "full", "discrete")
    )
    scale: str = setting(
        "log", "Parameterisation of the standard deviation.", choices=("log", "softplus")
    )
    rank: int = setting(4, "Factors of the low-rank family.", ge=1)
    levels: Any = setting(
        (-1.0, 1.0),
        "Values of the discrete family; of the size of trained weights, about 2 / sqrt(fan-in).",
        kind=(tuple, list),
    )

    def make_posterior(self, model: Model, fit_job: FitJob) -> Posterior:
        """The chosen family at the starting values."""
        values = self.start(model, fit_job)
        if self.posterior == "discrete":
            return discrete_posterior(model, values, self.levels)
        return start_posterior(
            model, self.posterior, values, self.init_std, self.rank, self.scale, fit_job.seed
        )
