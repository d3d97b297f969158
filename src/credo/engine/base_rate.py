"""The best constant prediction: what a fit must beat to have learned anything from its inputs."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor

from credo.core.errors import CredoError
from credo.data.source import Source
from credo.likelihoods.base import Likelihood

STEPS = 100  # of LBFGS
ROWS = 1000  # of data that are modelled themselves


def base_rate(likelihood: Likelihood, train: Source, scored: Source | None = None) -> float:
    """``constant_nll`` of what is modelled of these data: targets, or the first of the data
    themselves.
    """
    try:
        own, values = _modelled(likelihood, train)
        others = None if scored is None else _modelled(likelihood, scored)[1]
    except CredoError:
        return math.inf
    return constant_nll(own, values, others)


def _modelled(likelihood: Any, source: Source) -> tuple[Likelihood, Tensor]:
    if likelihood.of_inputs:
        return likelihood.modelled(next(iter(source(None, ROWS)))[0])
    return likelihood, likelihood.check_targets(source.targets())


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
