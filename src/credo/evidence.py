"""Models compared by their evidence: Bayes factors, posterior probabilities and description
lengths, with Monte Carlo errors.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from credo.bnn import BNN
from credo.core.errors import CredoError, SettingError
from credo.core.settings import renamed
from credo.data.intake import intake


class Factor(NamedTuple):
    """A Bayes factor as a logarithm, its Monte Carlo error, and the factor itself."""

    log: float
    error: float
    value: float


@dataclass(frozen=True)
class Comparison:
    """Log evidences (or lower bounds of them) in nats with standard errors, and the probabilities
    they imply.

    ``probability_error`` is the standard error of each probability by the delta method. A bound's
    gap to the evidence is not part of any error: models with looser bounds get less than their due.
    """

    log_evidence: tuple[float, ...]
    error: tuple[float, ...]
    bound: tuple[bool, ...]
    probability: tuple[float, ...]
    probability_error: tuple[float, ...]

    def bayes_factor(self, a: int, b: int) -> float:
        """p(D given model a) / p(D given model b); infinite where it is beyond the largest
        number.
        """
        return self.factor(a, b).value

    def factor(self, a: int, b: int) -> Factor:
        """The Bayes factor of a over b with the error of its logarithm."""
        log = self.log_evidence[a] - self.log_evidence[b]
        return Factor(
            log,
            math.hypot(self.error[a], self.error[b]) if a != b else 0.0,
            math.exp(log) if log < 700 else math.inf,
        )

    @property
    def bits(self) -> tuple[float, ...]:
        """Description length of the data under each model, -log2 evidence (continuous data: at unit
        precision).
        """
        return tuple(-value / math.log(2) for value in self.log_evidence)

    @property
    def best(self) -> int:
        """The model with the shortest total description, weights and data together."""
        return max(range(len(self.log_evidence)), key=lambda place: self.log_evidence[place])


@renamed(samples="num_samples", warn=False)
def compare(
    bnns: Sequence[BNN],
    data: Any,
    prior_odds: Sequence[float] | None = None,
    num_samples: int = 1000,
    seed: int = 0,
    evidence: str = "elbo",
) -> Comparison:
    """Posterior probabilities of fitted models given their training data.

    A model fitted with ``exact`` brings its evidence, one fitted with ``laplace`` an approximation
    of it. For any other, ``evidence="elbo"`` takes the ELBO, a lower bound, so that a loose bound
    can reverse the order; ``"importance"`` estimates log p(D) = log E_q[p(D, w) / q(w)] from the
    same draws, a bound that tightens with ``num_samples`` but whose error is itself uncertain when
    few draws carry the weight (that is warned about). Point estimates and improper priors have no
    evidence and are refused.
    """
    if len(bnns) < 2:
        raise CredoError(f"compare needs at least two models, got {len(bnns)}.")
    if evidence not in ("elbo", "importance"):
        raise SettingError(f"evidence={evidence!r}; expected 'elbo' or 'importance'.")
    odds = [1.0] * len(bnns) if prior_odds is None else list(prior_odds)
    if len(odds) != len(bnns) or min(odds) <= 0:
        raise CredoError(f"prior_odds={prior_odds!r}; expected {len(bnns)} positive numbers.")
    found = [
        _evidence(bnn, data, num_samples, seed, place, evidence) for place, bnn in enumerate(bnns)
    ]
    values, errors, bounds = zip(*found, strict=True)
    scores = [value + math.log(o) for value, o in zip(values, odds, strict=True)]
    top = max(scores)
    total = sum(math.exp(s - top) for s in scores)
    probability = tuple(math.exp(s - top) / total for s in scores)
    return Comparison(
        values,
        errors,
        bounds,
        probability,
        tuple(_probability_error(probability, errors, k) for k in range(len(found))),
    )


def _probability_error(probability: Sequence[float], errors: Sequence[float], place: int) -> float:
    """Standard error of p_k: d p_k = p_k (d l_k - sum_j p_j d l_j), for independent errors of the
    log evidences l.
    """
    own = probability[place]
    return own * math.hypot(
        *[
            ((place == j) - p) * error
            for j, (p, error) in enumerate(zip(probability, errors, strict=True))
        ]
    )


def _evidence(
    bnn: BNN, data: Any, samples: int, seed: int, place: int, kind: str
) -> tuple[float, float, bool]:
    """Log evidence, its standard error, and whether it is a lower bound."""
    if not bnn.proper:
        raise CredoError(
            f"Model {place} has an improper prior, under which evidence is undefined; give it a "
            "proper one."
        )
    if bnn.posterior.atoms is not None:
        raise CredoError(
            f"Model {place} is a point estimate or a set of samples, which has no ELBO; fit it "
            "with 'vi' or 'exact'."
        )
    if any(
        not family.kl_is_bound and bnn.model.prior_over(family) is not None
        for family in bnn.posterior.factors
    ):
        raise CredoError(
            f"Model {place} has points or masks under its prior, whose KL leaves out an infinite "
            "constant, so its ELBO bounds no "
            "evidence; fit it with 'vi' or 'exact'."
        )
    if bnn.history and "log_evidence" in bnn.history[-1]:
        value, units = bnn.history[-1]["log_evidence"], bnn.standardised
        if units is not None and units.y_std is not None:  # a density of targets as they were given
            value -= len(intake(data).targets()) * units.log_volume
        return value, 0.0, False
    if bnn.updated:
        raise CredoError(
            f"Model {place} was fitted in parts, so its ELBO bounds only the last part's "
            "evidence; fit it to all data at once."
        )
    if kind == "importance":
        return _importance(bnn, data, samples, seed, place)
    parts = bnn.objective(data, samples, seed)
    return parts["elbo"], parts["error"], True


def _importance(
    bnn: BNN, data: Any, samples: int, seed: int, place: int
) -> tuple[float, float, bool]:
    """log mean_s exp(l_s), with the delta method's error from the weights' deviation."""
    logs = bnn.log_weights(data, samples, seed)
    value = float(torch.logsumexp(logs, 0)) - math.log(len(logs))
    weights = (logs - value).exp()
    effective = float(weights.sum() ** 2 / weights.square().sum())
    if effective < 0.05 * len(logs):
        warnings.warn(
            f"Model {place}: {effective:.0f} of {len(logs)} draws carry the importance weight, so "
            "its evidence is a rough lower bound; "
            "take more samples, a richer posterior, or evidence='elbo'.",
            stacklevel=4,
        )
    return value, float(weights.std()) / math.sqrt(len(logs)), True
