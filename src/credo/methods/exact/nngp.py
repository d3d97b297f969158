"""The exact posterior of the network that this one becomes as all its hidden layers widen: a
Gaussian process.

Under weights N(0, sigma_w^2 / fan-in) and biases N(0, sigma_b^2) the function tends to a Gaussian
process with a kernel K of the depth, the activation (ReLU or erf) and those variances, all read
from the network and its prior; the widths no longer matter. With Gaussian noise s the posterior is
k(x)^T (K + s^2)^-1 y with variance K(x, x) - k(x)^T (K + s^2)^-1 k(x), the log evidence log N(y; 0,
K + s^2); learned noise is where that is largest. Not the posterior of the finite network, which
differs by about 1 / width and learns features, as the limit does not. Costs N^3 time and N^2
memory. Networks other than perceptrons (convolutions, too), priors whose variance does not fall as
1 / fan-in and other likelihoods are refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from credo.engine.fit_job import FitJob, Problem
from credo.engine.linear_gaussian import gaussian_likelihood, noise_std
from credo.engine.method import Method, methods
from credo.engine.model import Fitted, Model
from credo.methods.exact.parts.noise_by_evidence import set_best_noise
from credo.methods.exact.parts.wide_limit import all_data, wide_limit
from credo.posteriors import Posterior, WideNetwork
from credo.posteriors.nngp import check_rows
from credo.posteriors.wide_kernel import wide_kernel


@methods.register("nngp")
@dataclass(frozen=True)
class NNGP(Method):
    """Gaussian process regression with the kernel of the wide network."""

    name: ClassVar[str] = "nngp"
    summary: ClassVar[str] = (
        "Exact posterior of the infinitely wide limit of a perceptron (a Gaussian process)."
    )
    reference: ClassVar[str] = (
        "Neal 1996, Bayesian learning for neural networks; Williams 1997; Cho and Saul 2009; Lee "
        "et al. 2018, Deep neural networks as Gaussian "
        "processes; Matthews et al. 2018."
    )
    batch_size: ClassVar[int | None] = None
    fixed_length: ClassVar[bool] = True
    fidelity: ClassVar[str] = "approximate"  # exact for the limit, which is another model
    teachable: ClassVar[bool] = False
    conformance_settings: ClassVar[dict[str, Any]] = {}
    exceptions: ClassVar[dict[str, str]] = {
        "networks": "only perceptrons have this limit in closed form",
        "classification": "only a Gaussian likelihood is conjugate",
        "resume": "one pass over the data leaves nothing to resume",
    }

    def usual_steps(self, problem: Problem, batch_size: int | None) -> int:
        """One pass over the data."""
        return 1

    def fit(self, model: Model, fit_job: FitJob) -> Fitted:
        """Read the limit off the network, take all data at once, and solve."""
        likelihood = gaussian_likelihood(model, "nngp")
        limit = wide_limit(model)
        check_rows(fit_job.source.num_data)
        x, y = all_data(model, fit_job, limit.features)
        if likelihood.log_std.requires_grad:
            set_best_noise(likelihood, wide_kernel(x, x, *limit[1:]), y)
        family = WideNetwork.condition(x, y, noise_std(model).reshape(-1).square(), *limit[1:])
        posterior, evidence = Posterior([family]), family.log_evidence(y)
        row = {"epoch": 0, "elbo": evidence, "log_evidence": evidence}
        if fit_job.run is not None:
            fit_job.run.history(-1)  # what a run killed right here may have left
        if fit_job.validate is not None:
            row["validation_nll"] = fit_job.validate(posterior, model.buffers())
        fit_job.note(row)
        return Fitted(posterior, model.buffers())
