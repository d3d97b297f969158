"""The objective of the variational information bottleneck, in its two parts.

sum over n of E_z~q(z given x_n)[-log q(y_n given z)] + beta KL[q(z given x_n), r(z)]. The second
part, like the first, is a sum over data, so both are scaled by N / B; a KL of the weights would not
be. Here weights are points without a prior and codes take the place of weights: what the objective
calls its KL is (N / B) times the sum over the batch of the codes' KLs, and beta is the weight that
the descent gives it.
"""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor

from credo.core.errors import NetworkError
from credo.core.shell import Shell
from credo.engine.elbo import Elbo
from credo.engine.model import Model
from credo.estimators import Pass, estimators
from credo.nets.bottleneck import recorded
from credo.posteriors import Posterior


@final
class Bottlenecked(Elbo):
    """An ``Elbo`` whose KL is that of the codes of ``num_data`` examples; ``rate`` of the history
    is the same per example.

    The rate is the mean over an epoch's examples of KL[q(z given x), r(z)] in nats, as training saw
    them: an upper bound on I(X; Z).
    """

    tally: Tensor

    def __init__(
        self, model: Model, posterior: Posterior, num_data: int, train_samples: int = 1
    ) -> None:
        super().__init__(model, posterior, estimators["weights"], train_samples)
        self.num_data = num_data
        # of the epoch so far: the KLs' sum, and of how many examples; a buffer, so that a captured
        # step adds to it too
        self.register_buffer(
            "tally", torch.zeros(2, dtype=torch.float64, device=model.device), persistent=False
        )

    def _pass(self, shell: Shell, *given: Any) -> Pass:
        with recorded(shell.module) as calls:
            done = super()._pass(shell, *given)
        size = len(done.each)
        total = done.kl
        for kl in calls:
            if kl.shape != (size,):
                raise NetworkError(
                    f"A Bottleneck gives codes for {tuple(kl.shape)} examples where the batch has "
                    f"{size}; its inputs must have the "
                    "axis of the examples first."
                )
            total = total + kl.sum() * (self.num_data / size)
        if not calls:
            raise NetworkError(
                "The network has a Bottleneck that no pass calls; call it in the network's forward."
            )
        with torch.no_grad():
            self.tally[0] += total.double() * (size / self.num_data)
            self.tally[1] += size
        return Pass(done.nll, total, done.draws, done.each)

    def rate(self) -> float:
        """Mean KL per example of the epoch so far, in nats; NaN before its first step."""
        return float(self.tally[0] / self.tally[1])

    def divergence(self) -> Tensor:
        """N times the rate: the epoch's mean says more than its last batch."""
        return self.num_data * self.tally[0] / self.tally[1]

    def monitor(self) -> dict[str, float]:
        """The rate, beside what posterior and likelihood say."""
        return {"rate": self.rate()} | super().monitor()

    def after_epoch(self, epoch: int, epochs: int) -> None:
        """An epoch is over: count from zero."""
        self.tally.zero_()
