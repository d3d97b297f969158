"""Deep kernel learning: a Gaussian process on the features of a network, in place of its last
layer.

f_c(x) ~ GP(m_c, k_c(h(x), h(x'))) for every output c, h the layers below, k an RBF kernel; q is
sparse, N(a, S) at ``inducing`` points. Maximises sum_n E_q(f)[log p(y_n given f(x_n))] - KL[q(u),
p(u)] over q, inducing points, kernels, the likelihood and h together, in batches, for any
likelihood. Features are moved and scaled by fixed numbers, their means and deviations over the data
as the network starts, so that kernels start at the right length. The weights of h have a normal
prior as wide as layers start, or the one that the user names for them: with none, features of few
data are learned by heart. Of fewer than 60 data a fit of no given length learns the process alone,
on h as it starts. Fails by feature collapse: h may map inputs unlike any in the data onto
features of the data, where the process is then sure of itself, or overfit as a network does.
Uncertainty grows away from the data only as far as features do. Needs the package gpytorch
(``credo-bayes[gp]``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from credo.core.seeds import generator
from credo.core.settings import setting
from credo.engine.fit_job import FitJob, Problem
from credo.engine.method import Method, methods
from credo.engine.model import Fitted, Model
from credo.methods.exact.parts.process_fit import (
    MAX_STEPS,
    ProcessElbo,
    ProcessSettings,
    descend_on_process,
    first_inputs,
    last_layer,
)
from credo.posteriors.gaussian_process import SparseGP, given, gpytorch_of

LEAST_ROWS = 60  # that features are learned from, where the length of the fit is not given


@methods.register("dkl")
@dataclass(frozen=True)
class DKL(Method, ProcessSettings):
    """A sparse process instead of the last layer."""

    name: ClassVar[str] = "dkl"
    summary: ClassVar[str] = (
        "Deep kernel learning: a sparse Gaussian process on learned features, in place of the "
        "last layer."
    )
    reference: ClassVar[str] = (
        "Wilson et al. 2016, Deep kernel learning; Wilson et al. 2016, Stochastic variational "
        "deep kernel learning; Hensman et al. 2015."
    )
    conformance_settings: ClassVar[dict[str, Any]] = {
        "epochs": 100,
        "batch_size": 16,
        "num_inducing": 8,
    }
    exceptions: ClassVar[dict[str, str]] = {
        "conjugate_mean": "its functions of the inputs are not linear: there are no weights to "
        "compare",
        "conjugate_covariance": "likewise",
    }

    init: Any = setting(
        "pretrained",
        "Start of the layers below: 'pretrained' (the network's values), 'random', or a state "
        "dict.",
        kind=(str, Mapping),
        choices=("pretrained", "random"),
    )
    faster: float = setting(
        10.0, "Learning rate of the process, as a multiple of the network's.", gt=0.0
    )

    def usual_steps(self, problem: Problem, batch_size: int | None) -> int:
        """As many as of other methods, and 5,000 at most."""
        return min(problem.num_steps(batch_size), MAX_STEPS)

    def adapt(self, model: Model) -> Model:
        """Only the last layer is random; the layers below are point estimates."""
        return model.narrow("last")

    def fit(self, model: Model, fit_job: FitJob) -> Fitted:
        """Find the last layer, place inducing points among its inputs, descend."""
        gpytorch_of("dkl")
        layer = last_layer(model, fit_job.source.example(2))
        values = model.start_values(self.init, fit_job.seed)
        points = {n: v for n, v in values.items() if n in model.point}
        features = first_inputs(model, fit_job, points, lambda shell, x: given(shell, x, *layer))
        seeded = generator(fit_job.seed, "inducing")
        process = SparseGP.start(layer.path, features, layer.outputs, self.num_inducing, seeded)
        holds = fit_job.settles and fit_job.source.num_data < LEAST_ROWS
        learner = ProcessElbo(model, model.with_points([process], values), holds=holds)
        return descend_on_process(learner, fit_job, self.lr_schedule, self.faster)
