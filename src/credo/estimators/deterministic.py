"""Training by moments: the expectation of the log-likelihood under the Gaussian that moment
propagation gives.
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from credo.core.errors import NetworkError
from credo.core.seeds import Ambient
from credo.core.shell import Shell
from credo.estimators.base import Estimator, estimators
from credo.estimators.moments import Moments, place_moments
from credo.likelihoods.base import Likelihood
from credo.posteriors import Draw, Posterior


class Deterministic(Estimator):
    """Nothing is sampled: outputs have a mean and a variance, and the nll is its expectation under
    independent Gaussians.
    """

    name: ClassVar[str] = "moments"

    def __init__(self, covariance: str = "diagonal") -> None:
        self.covariance = covariance

    def place(self, shell: Shell, posterior: Posterior, *rest: Any, **how: Any) -> list[Draw]:
        """Put the families themselves into the shell; the draws returned are never drawn from."""
        place_moments(shell, posterior, self.covariance)
        return posterior.begin(Ambient(), None)

    def nll(self, likelihood: Likelihood, outputs: Tensor, y: Tensor) -> Tensor:
        """-E[log p(y given f)] summed over the batch."""
        if not isinstance(outputs, Moments):
            raise NetworkError(
                "No random parameter reached the network's output by an operation with a rule for "
                "moments."
            )
        var_or_cov = outputs.var_or_cov
        var = var_or_cov.diagonal(dim1=-2, dim2=-1) if self.covariance == "full" else var_or_cov
        return -likelihood.expected_log_prob(
            outputs.expected, var.reshape(outputs.expected.shape), y
        ).sum()


estimators.register("moments")(Deterministic())
