"""The objective of a fitted posterior in its parts: nats per data set, and bits of a message that a
receiver could decode.

Minimum description length, with bits back: the sender draws w from q, sends it under the prior
(-log2 p(w) bits), then the data given w (-log2 p(D given w) bits), and the receiver, who can run
the same fit, recovers the -log2 q(w) bits of randomness that chose w. The net cost of the weights
is KL[q, p] and the whole message costs -ELBO.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from credo.core.errors import CredoError
from credo.core.seeds import Streams
from credo.engine.model import Model
from credo.posteriors import Family, FamilyPrior, Params, Posterior
from credo.predictive import Predictive


@torch.no_grad()
def objective(
    model: Model,
    posterior: Posterior,
    predictive: Predictive,
    y: Tensor,
    seed: int,
    precision: float | None,
) -> dict[str, float]:
    """nll, KL and ELBO in nats with standard errors, and their lengths in bits where the data have
    one.
    """
    targets = predictive.likelihood.check_pair(predictive.outputs, y)
    per_draw = -predictive.likelihood.log_prob(predictive.outputs, targets).double().sum(-1)
    samples = len(per_draw)
    nll, _ = _average(per_draw)
    cost, sent = 0.0, 0.0
    process = posterior.process
    for family in posterior.factors:
        if process is not None and family is process:
            terms = process.own_kl().double()
            cost, sent, per_draw = cost + float(terms), sent + float(terms), per_draw + terms
            continue
        prior = model.prior_over(family)
        if prior is not None:
            terms = divergence(family, prior, samples, seed)
            part, per_draw = (
                float(terms.mean()),
                per_draw + terms,
            )  # the very draws behind the nll, so that errors may cancel
            cost += part
            sent += (
                part
                if family.atoms is not None or not family.kl_is_bound
                else part + _entropy(family, samples, seed)
            )
    out = {"nll": nll, "kl": cost, "elbo": -nll - cost, "error": _average(per_draw)[1]}
    if predictive.likelihood.discrete or precision is not None:
        shift = 0.0 if precision is None else -math.log(precision) * targets.numel()
        bits = {"bits_data": nll + shift, "bits_weights": cost, "bits_total": nll + shift + cost}
        bits |= {"bits_sent": sent, "bits_back": sent - cost}
        out |= {name: value / math.log(2) for name, value in bits.items()}
    return out


def divergence(family: Family, prior: FamilyPrior, samples: int, seed: int) -> Tensor:
    """KL[q, p] ``()`` where a closed form is known, else log q - log p of every draw
    ``(samples,)``.
    """
    closed = family.kl(prior)
    if closed is not None:
        return closed.double()
    rows = []
    for latents in _draws(family, samples, seed):
        rows.append(family.log_prob(latents) - family.log_prior(prior, latents))
    return torch.cat(rows).double()


def _draws(family: Family, samples: int, seed: int) -> Iterator[Params]:
    """The draws 0..samples-1, a few at a time so that memory stays bounded."""
    numel = max(sum(shape.numel() for shape in family.shapes.values()), 1)
    chunk = max(1, (1 << 24) // numel)
    for start in range(0, samples, chunk):
        yield family.latents(Streams(seed, range(start, min(start + chunk, samples))))


def _entropy(family: Family, samples: int, seed: int) -> float:
    """H[q] in nats, what sending a draw gives back (of a density: up to the precision, which
    cancels).
    """
    closed = family.entropy()
    if closed is not None:
        return float(closed)
    return -float(
        torch.cat([family.log_prob(latents) for latents in _draws(family, samples, seed)])
        .double()
        .mean()
    )


def _average(values: Tensor) -> tuple[float, float]:
    return float(values.mean()), float(values.std(correction=0)) / max(len(values) - 1, 1) ** 0.5


@torch.no_grad()
def log_weights(
    model: Model, posterior: Posterior, predictive: Predictive, y: Tensor, seed: int
) -> Tensor:
    """log p(D given w_s) + log p(w_s) - log q(w_s) of the draws behind a predictive, whose mean of
    exponentials is the evidence.
    """
    targets = predictive.likelihood.check_pair(predictive.outputs, y)
    total = predictive.likelihood.log_prob(predictive.outputs, targets).double().sum(-1)
    if posterior.process is not None:
        raise CredoError(
            "A posterior over functions has no importance weights of its weights; use "
            "evidence='elbo'."
        )
    draws = posterior.realise(range(len(total)), seed)
    for family in posterior.factors:
        prior = model.prior_over(family)
        if family.atoms is not None:
            if prior is not None:
                raise CredoError(
                    "A posterior with point estimates under a prior has no importance weights."
                )
            continue
        if prior is not None:
            params = {name: draws[name] for name in family.names}
            total = total + prior.log_prob(params).double() - family.log_prob(params).double()
    return total
