"""A likelihood whose targets are a teacher's predictions instead of observations."""

from __future__ import annotations

from typing import Any, ClassVar, final

import torch
from torch import Tensor
from torch.distributions import Distribution

from credo.likelihoods.base import Likelihood
from credo.likelihoods.continuous_likelihood import ContinuousLikelihood
from credo.likelihoods.fisher_information import NormalNoiseTerms


@final
class Soft(Likelihood):
    """log p of soft targets is E log p(y given f) of the likelihood inside: its fit is a student's,
    with any method.

    ``outputs``: how many the student needs. Name, description and learned numbers are those of the
    likelihood inside, by the same names, so that what a fit writes is a plain model of that
    likelihood. It is in no registry: its targets have no meaning of their own. All else is answered
    by the likelihood inside: distributions, draws and quantiles are of y, not of soft targets.
    """

    name: ClassVar[str] = "soft"  # of the class; an object carries the name of what is inside
    discrete: ClassVar[bool] = False
    metric_family: ClassVar[str] = "values"

    def __init__(self, inside: Likelihood, outputs: int) -> None:
        super().__init__()
        self._inside = (
            inside,
        )  # in a tuple, so that its parameters are not registered a second time
        self.outputs = outputs
        # The same dictionaries, so that both see it when parameters are moved, replaced or copied.
        self._parameters, self._buffers = inside._parameters, inside._buffers
        self._non_persistent_buffers_set = inside._non_persistent_buffers_set
        for name in ("name", "discrete", "metric_family", "latents_per_target"):
            setattr(self, name, getattr(inside, name))

    @property
    def inside(self) -> Likelihood:
        """The likelihood of y, with the parameters as they are now."""
        return self._inside[0]

    @property
    def observed(self) -> Likelihood:
        return self.inside

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """E log p(y given f) over the soft targets, ``(..., N)``."""
        return self.inside.soft_log_prob(outputs, y)

    def check_targets(self, y: Tensor) -> Tensor:
        """Soft targets as they are: who made them has checked them."""
        return y

    def check_training_targets(self, y: Tensor) -> Tensor:
        """Soft targets as they are; a teacher that says the same everywhere can be learned from."""
        return y

    def num_outputs(self, y: Tensor) -> int:
        return self.outputs

    def target_dim(self, num_outputs: int) -> int:
        return self.inside.target_dim(num_outputs)

    def forward(self, outputs: Tensor) -> Distribution:
        return self.inside(outputs)

    def marginals(self, outputs: Tensor) -> Distribution:
        return self.inside.marginals(outputs)

    def marginal_entropy(self, outputs: Tensor) -> Tensor:
        return self.inside.marginal_entropy(outputs)

    def mixture_quantile(self, outputs: Tensor, q: float) -> Tensor:
        return self.inside.mixture_quantile(outputs, q)

    def sample(self, outputs: Tensor, generator: torch.Generator | int = 0) -> Tensor:
        return self.inside.sample(outputs, generator)

    def information(self, outputs: Tensor) -> Tensor:
        """Of the likelihood inside, whose curvature in expectation does not depend on y."""
        return self.inside.information(outputs)

    def information_root(self, outputs: Tensor) -> Tensor:
        return self.inside.information_root(outputs)

    def noise_terms(self, nll: float, num_data: int, num_outputs: int) -> NormalNoiseTerms | None:
        """Of the likelihood inside: a teacher's variance counts with the residuals."""
        return self.inside.noise_terms(nll, num_data, num_outputs)

    def widen_noise(self, factor: float) -> None:
        self.inside.widen_noise(factor)

    def softened(self, mean: Tensor, var: Tensor) -> Tensor:
        return self.inside.softened(mean, var)

    def monitor(self) -> dict[str, float]:
        return self.inside.monitor()

    def in_units(self, std: Tensor) -> Soft:
        """Of a likelihood of real targets inside: that of targets ``std`` times as large."""
        assert isinstance(self.inside, ContinuousLikelihood)
        return Soft(self.inside.in_units(std), self.outputs)

    def frozen(self) -> Soft:
        return Soft(self.inside.frozen(), self.outputs)

    def config(self) -> dict[str, Any]:
        return self.inside.config()
