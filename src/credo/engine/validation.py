"""Predictions in the middle of a fit or at its end, and the predictive nll on held-out data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from credo.data.source import Source
from credo.engine.model import Fitted, Model
from credo.engine.outputs import Draws, sampled_outputs, with_drawn
from credo.posteriors import Posterior
from credo.predictive import Predictive
from credo.predictive.shortcuts import shortcut_named

if TYPE_CHECKING:
    from credo.engine.method import Method

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


def predicted(model: Model, method: Method, fitted: Fitted, x: Any, samples: int) -> Predictive:
    """What the method predicts at ``x``, which is as the model sees it, from so many draws."""
    extra: Mapping[str, Tensor] = {}
    if method.shortcut is None or method.shortcut == "mean":
        draws = Draws.of(fitted.posterior, samples, 0)
        outputs, extra = sampled_outputs(model, draws, x, fitted.buffers, 0)
    else:
        predict = shortcut_named(method.shortcut).outputs
        outputs = predict(model, fitted.posterior, x, fitted.buffers, samples, batch_size=None)
    return Predictive(outputs, with_drawn(model.likelihood, extra))
