"""log p(x) by importance sampling: log (1/K) sum_k p(x given z_k) p(z_k) / r(z_k) with z_k from a
proposal r.

In expectation a lower bound for every K, increasing with it; r is the encoder's q(z given x), or
the prior.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from credo.core.errors import SettingError
from credo.generative.network import LatentNet

BUDGET = {"cpu": 1 << 22, "cuda": 1 << 28}  # numbers the decoder gives at a time


def log_weights(net: LatentNet, x: Tensor, draws: int, proposal: str) -> Tensor:
    """log p(x, z_k) - log r(z_k), ``(K, N)``, of fresh draws for data as they are modelled."""
    if proposal == "encoder":
        q = net.posterior(net.inputs(x))
        z = q.sample(torch.Size([draws]))
        log_ratio = net.log_prior(z) - q.log_prob(z)
    elif proposal == "prior":
        z = net.from_prior(draws * len(x)).unflatten(0, (draws, len(x)))
        log_ratio = torch.zeros((), device=z.device)
    else:
        raise SettingError(f"proposal={proposal!r}; expected 'encoder' or 'prior'.")
    return net.log_fit(z, net.targets(x)) + log_ratio


def draws_at_once(net: LatentNet, num_data: int) -> int:
    """How many draws of z to make at once for ``num_data`` data: by what the decoder gives for
    them, or the prior compares them with.
    """
    wide = max(net.num_outputs(), net.code.size * net.prior.data_needed)
    return max(1, BUDGET.get(net.ramp.device.type, BUDGET["cpu"]) // (num_data * wide))


def importance(net: LatentNet, x: Tensor, draws: int, proposal: str = "encoder") -> Tensor:
    """The estimate ``(N,)`` from ``draws`` draws, made a few at a time."""
    size = draws_at_once(net, len(x))
    total: Tensor | None = None
    for start in range(0, draws, size):
        part = torch.logsumexp(log_weights(net, x, min(size, draws - start), proposal).double(), 0)
        total = part if total is None else torch.logaddexp(total, part)
    assert total is not None
    return total - math.log(draws)
