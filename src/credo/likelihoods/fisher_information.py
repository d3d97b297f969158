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


def softmax_root(probs: Tensor) -> Tensor:
    """R ``(..., C, C - 1)`` with R R^T = diag(p) - p p^T.

    diag(sqrt p) - p sqrt(p)^T is a root that maps sqrt(p) to zero; a reflection that turns sqrt(p)
    into the first axis puts that into its first column, which is left out.
    """
    half = probs.sqrt()
    root = torch.diag_embed(half) - probs.unsqueeze(-1) * half.unsqueeze(-2)
    sign = torch.where(half[..., :1] < 0, -1.0, 1.0).to(half)
    mirror = torch.cat([half[..., :1] + sign, half[..., 1:]], -1)  # sqrt(p) has length one
    mirror = mirror / mirror.norm(dim=-1, keepdim=True)
    turned = root - 2.0 * (root @ mirror.unsqueeze(-1)) * mirror.unsqueeze(-2)
    return turned[..., 1:]
