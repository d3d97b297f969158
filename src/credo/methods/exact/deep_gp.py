"""A deep Gaussian process: layers of Gaussian processes on the inputs themselves.

f(x) = f_L(... f_1(x)), each f_l a set of independent sparse processes. Draws of the hidden layers
at every input make the bound doubly stochastic: maximises sum_n E_q(h)[E_q(f given h)[log p(y_n
given f)]] - sum_l KL[q(u_l), p(u_l)], the outer expectation over hidden values h by
``train_samples`` draws, the inner one by the likelihood. Hidden layers have the identity as their
mean (the main directions of their inputs, where they are narrower). The network only says how many
outputs there are: it is not part of the model, and its parameters stay as they are; inputs are
flattened. Layers are independent under q, so depth adds no uncertainty by itself, and learned
hidden layers tend to end nearly certain; RBF kernels on raw pixels see little. Needs the package
gpytorch (``credo-bayes[gp]``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from credo.core.errors import SettingError
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
    num_outputs,
)
from credo.posteriors import DeepGP, Posterior
from credo.posteriors.deep_gp import real_rows
from credo.posteriors.gaussian_process import gpytorch_of


@methods.register("deep_gp")
@dataclass(frozen=True)
class DeepGPMethod(Method, ProcessSettings):
    """Sparse processes of sparse processes."""

    name: ClassVar[str] = "deep_gp"
    summary: ClassVar[str] = (
        "Deep Gaussian process on the inputs: layers of sparse processes; the network only counts "
        "outputs."
    )
    reference: ClassVar[str] = (
        "Damianou and Lawrence 2013, Deep Gaussian processes; Salimbeni and Deisenroth 2017, "
        "Doubly stochastic variational inference for deep "
        "Gaussian processes."
    )
    lr: ClassVar[float | None] = 1e-2
    conformance_settings: ClassVar[dict[str, Any]] = {
        "epochs": 50,
        "batch_size": 16,
        "num_inducing": 8,
        "widths": (2,),
    }
    exceptions: ClassVar[dict[str, str]] = {
        "networks": "token ids, which the LSTM and the Transformer take, have no distances",
        "conjugate_mean": "its functions of the inputs are not linear: there are no weights to "
        "compare",
        "conjugate_covariance": "likewise",
    }

    num_inducing: int = setting(
        32,
        "Inducing points of every layer, at most one per different training example.",
        ge=1,
        formerly="inducing",
    )
    widths: Any = setting(
        (5,), "Processes in every hidden layer; () for a single layer.", kind=(tuple, list)
    )
    train_samples: int = setting(1, "Draws of the hidden layers per step.", ge=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = [
            width
            for width in self.widths
            if isinstance(width, (int, float)) and not isinstance(width, bool)
        ]
        if len(sizes) < len(self.widths) or any(
            not size >= 1 or size % 1 != 0 for size in sizes
        ):  # a command line gives 5.0
            raise SettingError(
                f"deep_gp: widths={self.widths!r} is not valid; expected whole numbers from 1, "
                "such as (5,) or (5, 5)."
            )

    def usual_steps(self, problem: Problem, batch_size: int | None) -> int:
        """As many as of other methods, and 5,000 at most."""
        return min(problem.num_steps(batch_size), MAX_STEPS)

    def fit(self, model: Model, fit_job: FitJob) -> Fitted:
        """Place inducing points among the inputs, descend."""
        gpytorch_of("deep_gp")
        outputs = num_outputs(model, fit_job.source.example(2))
        inputs = first_inputs(model, fit_job, {}, lambda shell, x: real_rows(x))
        widths, seeded = tuple(map(int, self.widths)), generator(fit_job.seed, "inducing")
        process = DeepGP.start(inputs, outputs, widths, self.num_inducing, seeded)
        learner = ProcessElbo(model, Posterior([process]), self.train_samples)
        return descend_on_process(learner, fit_job, self.lr_schedule)
