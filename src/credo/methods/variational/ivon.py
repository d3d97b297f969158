"""Natural-gradient variational inference: the improved variational online Newton method (IVON).

A mean-field Gaussian whose precision is a running estimate of the curvature plus the prior's, so
that a step costs little more than Adam's. Needs a normal prior and a learning rate far above Adam's
(0.1 and more); a large ``hess_init`` starts with little noise. The curvature follows only as fast
as ``beta2`` allows: in short runs the spread is still that of ``hess_init``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, optim

from credo.core.errors import SettingError
from credo.core.settings import setting
from credo.engine.elbo import Elbo, family_prior
from credo.engine.elbo_fit import Variational
from credo.engine.fit_job import FitJob
from credo.engine.initial_posterior import start_posterior
from credo.engine.method import methods
from credo.engine.model import Model
from credo.engine.training_loop import MakeOptimizer
from credo.estimators import Estimator, estimators
from credo.methods.variational.parts.ivon_optimizer import Ivon, Newton
from credo.posteriors import MeanField, Posterior, fold


@methods.register("ivon")
@dataclass(frozen=True)
class IVON(Variational):
    """Mean-field VI by natural gradients."""

    name: ClassVar[str] = "ivon"
    summary: ClassVar[str] = (
        "Natural-gradient variational inference with a running estimate of the curvature."
    )
    reference: ClassVar[str] = (
        "Shen et al. 2024, Variational learning is effective for large deep networks."
    )
    lr: ClassVar[float] = 0.1
    target: ClassVar[str] = "mean_field"
    tolerance: ClassVar[float] = 0.1
    conformance_settings: ClassVar[dict[str, Any]] = {
        "epochs": 1500,
        "batch_size": None,
        "lr": 0.1,
        "beta2": 0.99,
        "train_samples": 4,
    }

    estimator: str = setting(
        "weights",
        "How noise enters training.",
        choices=("weights", "local", "flipout", "per_example"),
    )
    beta1: float = setting(0.9, "Decay of the gradient's average.", ge=0.0, le=0.9999)
    beta2: float = setting(0.9999, "Decay of the curvature's average.", gt=0.0, le=0.9999999)
    hess_init: float = setting(0.1, "Curvature to start from.", gt=0.0)
    point_lr: float = setting(
        1e-3,
        "Learning rate of point estimates and of the likelihood's noise, which move by Adam.",
        gt=0.0,
    )

    def __post_init__(self) -> None:
        """Beyond the fields' own checks: the optimizer knows the prior by its precision, so there
        is no KL to sample.
        """
        super().__post_init__()
        if self.kl != "closed":
            raise SettingError(
                f"ivon: kl={self.kl!r} is not valid; its optimizer needs the closed form, or use "
                "method='vi'."
            )

    def make_posterior(self, model: Model, fit_job: FitJob) -> Posterior:
        """Independent Gaussians; the optimizer sets their spread from ``hess_init``."""
        return start_posterior(
            model, "mean_field", self.start(model, fit_job), self.init_std, 1, "log", fit_job.seed
        )

    def make_estimator(self) -> Estimator:
        """The chosen estimator."""
        return estimators[self.estimator]

    def kl_kind(self) -> str:
        """The optimizer knows the prior by its precision."""
        return "apart"

    def make_optimizer(self, model: Model) -> MakeOptimizer[Elbo]:
        """The Newton step for every Gaussian, Adam for the rest."""

        def make(elbo: Elbo, lr: float | Tensor, num_data: int) -> optim.Optimizer:
            if model.prior.parts():
                raise SettingError(
                    f"ivon needs a fixed normal prior; {model.prior.describe()!r} is learned: use "
                    "method='vi' for it."
                )
            pairs = []
            for family in elbo.posterior.members:
                if isinstance(family, MeanField):
                    stats = fold(family, family_prior(family, model))
                    if stats is None:
                        raise SettingError(
                            "ivon needs a normal prior on every random parameter; use method='vi' "
                            "for others."
                        )
                    pairs.append((family, stats))
            newton = Newton(self.beta1, self.beta2, self.hess_init, num_data / self.beta)
            return Ivon(
                [p for p in elbo.parameters() if p.requires_grad],
                lr,
                pairs,
                newton,
                self.point_lr,
                self.compile is True,
            )

        return make
