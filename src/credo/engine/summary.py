"""What a fitted model can be asked besides predictions: what is wrong with it, its objective in
parts, weights of its draws, and what its prior was.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from credo.core.settings import renamed
from credo.engine.model import Fitted, Model
from credo.engine.objective import log_weights, objective
from credo.posteriors import Posterior
from credo.predictive import Predictive, evaluate
from credo.priors import Prior


class Summary(ABC):
    """Questions to a model with a posterior; ``BNN`` answers what they are made of."""

    _used: Prior  # the prior of the last fit: after update, the posterior before it

    @property
    @abstractmethod
    def model(self) -> Model:
        """Network, likelihood, prior and selection as methods see them."""

    @property
    @abstractmethod
    def posterior(self) -> Posterior:
        """The fitted posterior."""

    @abstractmethod
    def _predict_all(
        self,
        data: Any,
        samples: int,
        seed: int,
        batch_size: int | None = None,
        shortcut: str | None = None,
    ) -> tuple[Predictive, Tensor]: ...

    @abstractmethod
    def _result(self) -> Fitted: ...

    @property
    def trial(self) -> Mapping[str, Any] | None:
        """What was tried on held-out rows before the fit, and what was chosen by it; None where
        nothing was.
        """
        return self._result().trial

    def relevance(self, name: str | None = None) -> Tensor:
        """Learned prior standard deviation of each input feature ``(in_features,)``: near zero, the
        feature was switched off (ARD).

        Of the weight called ``name``, by default the first layer's. Needs a prior learned per input
        or per weight, such as "ard".
        """
        return self.model.relevance(name)

    @renamed(samples="num_samples", warn=False)
    def evaluate(
        self, data: Any, num_samples: int = 100, seed: int = 0, batch_size: int | None = None
    ) -> dict[str, float]:
        """Metrics on data: nll, accuracy or rmse, calibration, and more (see ``credo.metrics``)."""
        predictive, y = self._predict_all(data, num_samples, seed, batch_size)
        return evaluate(predictive, y)

    @renamed(samples="num_samples", warn=False)
    def objective(
        self, data: Any, num_samples: int = 100, seed: int = 0, precision: float | None = None
    ) -> dict[str, float]:
        """The ELBO on ``data`` in its parts, nats per data set, and as a description length in
        bits.

        nll = -E_q[log p(D given w)] from ``num_samples`` draws, kl = KL[q, p], elbo = -nll - kl,
        and the ELBO's standard error. Bits: data given weights, weights net (the KL), total; and
        what sending a draw of the weights takes before its bits come back. Continuous targets have
        a length only at a stated ``precision`` t: bits = -log2(t p(y)); without it bits are left
        out.
        """
        predictive, y = self._predict_all(data, num_samples, seed, shortcut="weights")
        return objective(self.model, self.posterior, predictive, y, seed, precision)

    @renamed(samples="num_samples", warn=False)
    def log_weights(self, data: Any, num_samples: int = 100, seed: int = 0) -> Tensor:
        """log p(D, w_s) - log q(w_s) of draws w_s ~ q: their mean is the ELBO, the mean of their
        exponentials the evidence.
        """
        predictive, y = self._predict_all(data, num_samples, seed, shortcut="weights")
        return log_weights(self.model, self.posterior, predictive, y, seed)

    @property
    def updated(self) -> bool:
        """Whether the last fit had an earlier posterior as its prior."""
        return self._used.earlier_posterior is not None

    @property
    def proper(self) -> bool:
        """Whether every random parameter has a prior that integrates to one, so that evidences mean
        something.
        """
        return self.model.is_proper
