"""Fisher information of a likelihood about its outputs: what curvature methods put in the middle of
J^T Lambda J.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from credo.core.seeds import generator

if TYPE_CHECKING:
    from credo.likelihoods.base import Likelihood


class NormalNoiseTerms(NamedTuple):
    """Scalar observations, and the sum of their squared residuals over the noise variance."""

    count: int
    misfit: float


DRAWS = 512  # of y per datum, where no closed form is known


def score(likelihood: Likelihood, outputs: Tensor, y: Tensor) -> Tensor:
    """The gradient of log p(y given f) by f, in the shape of the outputs."""
    with torch.enable_grad():
        f = outputs.detach().requires_grad_()
        (grad,) = torch.autograd.grad(likelihood.log_prob(f, y).sum(), f)
    return grad


def drawn_information(likelihood: Likelihood, outputs: Tensor) -> Tensor:
    """E_y[s s^T] of the score s ``(..., N, F, F)``, from fixed draws of y: an estimate, positive
    semidefinite always.
    """
    stacked = outputs.detach().unsqueeze(0).expand(DRAWS, *outputs.shape)
    y = likelihood.sample(stacked, generator("information", device=outputs.device))
    s = score(likelihood, stacked, y)
    return torch.einsum("s...f,s...g->...fg", s, s) / DRAWS
