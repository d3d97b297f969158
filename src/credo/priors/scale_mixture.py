"""Blundell's scale mixture of two centred Gaussians."""

from __future__ import annotations

import torch
from torch.distributions import Categorical, Distribution, MixtureSameFamily, Normal


def scale_mixture(weight: float = 0.5, std1: float = 1.0, std2: float = 0.0025) -> Distribution:
    """p(w) = weight N(0, std1^2) + (1 - weight) N(0, std2^2), elementwise (Blundell et al. 2015, eq. 7).

    A wide component keeps what is needed large and a narrow one pulls the rest to zero. It has no closed-form KL
    against a Gaussian posterior: credo samples it.
    """
    mixing = Categorical(probs=torch.tensor([weight, 1.0 - weight]))
    return MixtureSameFamily(mixing, Normal(torch.zeros(2), torch.tensor([std1, std2])))
