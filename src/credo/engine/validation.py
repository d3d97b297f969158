"""The predictive nll on data held out from a fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from credo.data.source import Source
from credo.engine.model import Model
from credo.engine.outputs import Draws, sampled_outputs, with_drawn
from credo.posteriors import Posterior
from credo.predictive import Predictive

DRAWS, BATCH = 16, 1024


def validation_nll(
    model: Model, source: Source
) -> Callable[[Posterior, Mapping[str, Tensor]], float]:
    """(posterior, buffers) -> -1/N sum log p(y_n given x_n), from a few draws, in the units of the
    targets as they were given.
    """
    log_volume = 0.0 if model.standardised is None else model.standardised.log_volume

    def score(posterior: Posterior, buffers: Mapping[str, Tensor]) -> float:
        total = 0.0
        for x, y in source(None, BATCH):
            draws = Draws.of(posterior, DRAWS, 0)
            outputs, extra = sampled_outputs(model, draws, x, buffers, 0)
            predictive = Predictive(outputs, with_drawn(model.likelihood, extra))
            total -= float(predictive.log_prob(y).sum())
        return total / source.num_data + log_volume

    return score
