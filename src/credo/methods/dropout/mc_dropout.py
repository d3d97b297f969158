"""MC dropout: dropout at training and at prediction time, read as a variational posterior.

q(w): every input unit of a layer is dropped with probability p, w = W z / (1 - p), z ~ Bernoulli(1
- p). Masking activations (``estimator="local"``) and masking the columns of weights
(``estimator="weights"``) are the same posterior. Under the prior N(0, l^-2) the objective is the
mean nll plus l^2 / (2 N (1 - p)) norm(W)^2, which is what a weight decay of l^2 / (N (1 - p)) does:
give ``length_scale`` instead of a decay, and it stays right when N or p changes. A network with
dropout of its own is used as it is. The noise does not shrink as data come in, since p is chosen;
``concrete_dropout`` learns it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from credo.engine.method import methods
from credo.engine.noise_places import DropoutMethod
from credo.posteriors import Dropout, Places


@methods.register("mc_dropout")
@dataclass(frozen=True)
class MCDropout(DropoutMethod):
    """Bernoulli masks at fixed rates."""

    name: ClassVar[str] = "mc_dropout"
    summary: ClassVar[str] = (
        "MC dropout: masks on units at fixed rates; uses a network's own dropout."
    )
    reference: ClassVar[str] = (
        "Gal and Ghahramani 2016, Dropout as a Bayesian approximation; 2016, A theoretically "
        "grounded application."
    )
    target: ClassVar[str] = "dropout"
    tolerance: ClassVar[float] = 0.05
    conformance_settings: ClassVar[dict[str, Any]] = {
        "epochs": 600,
        "batch_size": None,
        "lr": 0.02,
        "train_samples": 8,
    }

    as_it_is: ClassVar[bool] = True

    def make_family(self, values: Any, places: Places, rates: dict[str, float]) -> Dropout:
        """Masks at fixed rates."""
        return Dropout.start(values, places, rates)
