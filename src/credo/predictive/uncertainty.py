"""Where the uncertainty of a prediction comes from: pure functions of outputs ``(S, N, F)`` and a
likelihood.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from credo.likelihoods.base import Likelihood


class Uncertainty(NamedTuple):
    """total = aleatoric + epistemic: ``(N,)`` in nats for discrete outcomes, variances ``(N, D)``
    otherwise.
    """

    total: Tensor
    aleatoric: Tensor
    epistemic: Tensor


def decompose(outputs: Tensor, likelihood: Likelihood) -> Uncertainty:
    """Split the uncertainty of the mixture (1/S) sum_s p(y given f_s) into noise in y and
    disagreement between draws.

    Discrete: H[mean_s p_s] = mean_s H[p_s] + mutual information. Continuous: the law of total
    variance, var y = mean_s v_s + var_s m_s. With S = 1 the epistemic part is zero whatever the
    model knows.
    """
    aleatoric, epistemic = likelihood.uncertainty(outputs)
    return Uncertainty(aleatoric + epistemic, aleatoric, epistemic)


def mutual_information(outputs: Tensor, likelihood: Likelihood) -> Tensor:
    """I(y; draw) = H[mixture] - mean_s H[p_s] in nats, ``(N,)``, for any likelihood.

    At most log S, so too small where draws hardly overlap. Monte Carlo for more than one target
    dimension, and then noise may make it slightly negative for continuous y; for discrete y it is
    cut at zero.
    """
    information = likelihood.mixture_entropy(outputs) - likelihood.entropy(outputs).mean(0)
    return information.clamp_min(0.0) if likelihood.discrete else information
