"""Posteriors made of members' points: several equally likely ones, or the fixed part of one."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from credo.engine.model import Model
from credo.estimators import LIKELIHOOD
from credo.posteriors import Delta, Posterior, Samples


def equal_points(
    model: Model,
    values: Mapping[str, Tensor],
    likelihood_params: Mapping[str, Tensor],
    buffers: Mapping[str, Tensor],
) -> Posterior:
    """The posterior of K equally likely points, each tensor ``(K, *shape)``: parameters of the
    network and of the likelihood, and statistics of normalisation.
    """
    tables = [
        {n: values[n] for n in model.random},
        {n: values[n] for n in model.point},
        {f"{LIKELIHOOD}{n}": v for n, v in likelihood_params.items()},
        dict(buffers),
    ]
    kinds: dict[tuple[int, torch.dtype], dict[str, Tensor]] = {}
    for place, table in enumerate(tables):
        for name, value in table.items():
            kinds.setdefault((place, value.dtype), {})[name] = value
    return Posterior([Samples.of(part) for part in kinds.values()])


def fixed_points(
    model: Model, values: Mapping[str, Tensor], likelihood_params: Mapping[str, Tensor]
) -> list[Delta]:
    """Points over one member's parameters that are not random and over its likelihood's."""
    parts = [
        {n: values[n] for n in model.point},
        {f"{LIKELIHOOD}{n}": v for n, v in likelihood_params.items()},
    ]
    return [Delta.start(part) for part in parts if part]
