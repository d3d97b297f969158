"""The best constant prediction: what a fit must beat to have learned anything from its inputs."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor

from credo.core.errors import CredoError
from credo.likelihoods.base import Likelihood

STEPS = 100  # of LBFGS


def constant_nll(likelihood: Likelihood, y: Tensor, scored: Tensor | None = None) -> float:
    """Mean negative log-likelihood of ``scored`` (by default of ``y`` itself) under the constant
    outputs, and the learned noise, that fit the checked targets ``y`` best; infinite where
    nobody knows them.
    """
    try:
        own = copy.deepcopy(likelihood).double()
        width = own.num_outputs(y)
        outputs = torch.zeros(width, dtype=torch.float64, device=y.device, requires_grad=True)
        moved = [outputs, *(p for p in own.parameters() if p.requires_grad)]
        mover = torch.optim.LBFGS(moved, max_iter=STEPS, line_search_fn="strong_wolfe")

        def nll(targets: Tensor) -> Tensor:
            return -own.log_prob(outputs.expand(len(targets), width), targets).mean()

        def closure() -> Tensor:
            mover.zero_grad()
            loss = nll(y)
            loss.backward()
            return loss

        with torch.enable_grad():
            mover.step(closure)
            found = float(nll(y if scored is None else scored).detach())
        return found if math.isfinite(found) else math.inf
    except (CredoError, RuntimeError, ValueError, NotImplementedError):
        return math.inf  # a likelihood whose constant nobody knows
