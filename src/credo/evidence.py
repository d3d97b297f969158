"""Compare models by their evidence: Bayes factors and posterior probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from credo.bnn import BNN
from credo.core.errors import CredoError


@dataclass(frozen=True)
class Comparison:
    """Log evidences (or lower bounds of them) in nats with standard errors, and the probabilities they imply."""

    log_evidence: tuple[float, ...]
    error: tuple[float, ...]
    bound: tuple[bool, ...]
    probability: tuple[float, ...]

    def bayes_factor(self, a: int, b: int) -> float:
        """p(D given model a) / p(D given model b)."""
        return math.exp(self.log_evidence[a] - self.log_evidence[b])


def compare(
    bnns: Sequence[BNN], data: Any, prior_odds: Sequence[float] | None = None, samples: int = 1000, seed: int = 0
) -> Comparison:
    """Posterior probabilities of fitted models given their training data.

    A model fitted with ``exact`` brings its evidence; any other its ELBO, a lower bound, with Monte Carlo error: a loose bound can
    reverse the order. Point estimates and improper priors have no evidence and are refused.
    """
    if len(bnns) < 2:
        raise CredoError(f"compare needs at least two models, got {len(bnns)}.")
    odds = [1.0] * len(bnns) if prior_odds is None else list(prior_odds)
    if len(odds) != len(bnns) or min(odds) <= 0:
        raise CredoError(f"prior_odds={prior_odds!r}; expected {len(bnns)} positive numbers.")
    rows = [_evidence(bnn, data, samples, seed, place) for place, bnn in enumerate(bnns)]
    scores = [value + math.log(o) for (value, _, _), o in zip(rows, odds, strict=True)]
    top = max(scores)
    total = sum(math.exp(s - top) for s in scores)
    values, errors, bounds = zip(*rows, strict=True)
    return Comparison(values, errors, bounds, tuple(math.exp(s - top) / total for s in scores))


def _evidence(bnn: BNN, data: Any, samples: int, seed: int, place: int) -> tuple[float, float, bool]:
    if not bnn.proper:
        raise CredoError(f"Model {place} has an improper (flat) prior, under which evidence is undefined; give it a proper one.")
    if bnn.posterior.atoms is not None:
        raise CredoError(
            f"Model {place} is a point estimate or a set of samples, which has no ELBO; fit it with 'vi' or 'exact'."
        )
    if bnn.history and "log_evidence" in bnn.history[-1]:
        return bnn.history[-1]["log_evidence"], 0.0, False
    if bnn.updated:
        raise CredoError(
            f"Model {place} was fitted in parts, so its ELBO bounds only the last part's evidence; fit it to all data at once."
        )
    parts = bnn.objective(data, samples, seed)
    return parts["elbo"], parts["error"], True
