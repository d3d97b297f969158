"""Start a posterior of a chosen family at a network's values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from credo.core.errors import SettingError
from credo.core.seeds import generator
from credo.core.sites import Site, blocks
from credo.engine.model import Model
from credo.posteriors import Delta, Discrete, Family, Full, Kron, LowRank, MeanField, Posterior

Values = dict[str, Tensor]


def initial_values(model: Model, init: str | Mapping[str, Tensor], seed: int) -> Values:
    """Where the means start: the network's own values ("pretrained"), fresh ones ("random"), or a
    state dict.
    """
    if isinstance(init, str):
        return model.random_values(seed) if init == "random" else model.values()
    if not isinstance(init, Mapping):
        raise SettingError(f"init={init!r}: expected 'pretrained', 'random' or a state dict.")
    return model.values(init)


def point_posterior(model: Model, values: Values) -> Posterior:
    """Point estimates of everything; the random parameters apart, because only they have a
    prior.
    """
    return Posterior(
        [
            Delta.start({n: values[n] for n in names})
            for names in (model.random, model.point)
            if names
        ]
    )


def start_posterior(
    model: Model, kind: str, values: Values, init_std: float, rank: int, scale: str, seed: int
) -> Posterior:
    """A posterior of family ``kind`` over the random parameters and a point over the rest."""
    start: dict[str, Callable[[Values], Family]] = {
        "mean_field": lambda v: MeanField.start(v, init_std, scale),
        "low_rank": lambda v: LowRank.start(v, generator(seed, "factors"), init_std, rank, scale),
        "full": lambda v: Full.start(v, init_std),
    }
    members: list[Family] = []
    for group in by_dtype(model.random):
        if kind == "kron":
            members += _kron(group, values, init_std, scale)
        else:
            members.append(start[kind]({site.name: values[site.name] for site in group}))
    return with_points(model, values, members)


@torch.no_grad()
def gaussian(values: Values, std: Values, factor: Values | None = None) -> Family:
    """Independent Gaussians with these deviations, or with ``factor`` ``(R, *shape)`` their sum
    with R shared directions.
    """
    diagonal = MeanField.start(values, 1.0)
    least = (
        torch.finfo(diagonal.raw_std.dtype).tiny ** 0.5
    )  # a weight that never moved has no logarithm
    diagonal.raw_std.copy_(diagonal.layout.join(std).clamp_min(least).log())
    if factor is None:
        return diagonal
    columns = diagonal.layout.join(factor)
    family = LowRank(
        diagonal.shapes, len(columns), dtype=str(columns.dtype).removeprefix("torch.")
    ).to(columns.device)
    family.diagonal = diagonal
    family.factor.copy_(columns)
    return family


def discrete_posterior(model: Model, values: Values, levels: Sequence[float]) -> Posterior:
    """Random parameters on ``levels``, the rest points."""
    groups = [{site.name: values[site.name] for site in group} for group in by_dtype(model.random)]
    return with_points(model, values, [Discrete.start(group, levels) for group in groups])


def with_points(model: Model, values: Values, members: list[Family]) -> Posterior:
    """These families, and a point over the parameters that are not random."""
    return Posterior(
        [*members, *([Delta.start({n: values[n] for n in model.point})] if model.point else [])]
    )


def by_dtype(sites: Mapping[str, Site]) -> list[list[Site]]:
    """Parameters of one type each, since a family holds its numbers in one tensor."""
    kinds: dict[torch.dtype, list[Site]] = {}
    for site in sites.values():
        kinds.setdefault(site.dtype, []).append(site)
    return list(kinds.values())


def _kron(sites: list[Site], values: Values, init_std: float, scale: str) -> list[Family]:
    """A matrix normal per layer; what is not a matrix (scales, lone biases) is independent."""
    members: list[Family] = []
    rest: Values = {}
    for block in blocks(sites):
        part: dict[str, Any] = {site.name: values[site.name] for site in block}
        if len(block[0].shape) >= 2 and not (block[0].transposed and len(block) > 1):
            members.append(Kron.start(part, init_std))
        else:
            rest |= part
    return members + ([MeanField.start(rest, init_std, scale)] if rest else [])
