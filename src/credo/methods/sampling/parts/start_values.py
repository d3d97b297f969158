"""Where chains start: values of every parameter."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from credo.core.errors import SettingError
from credo.core.seeds import mix
from credo.engine.draws import prior_draws
from credo.engine.model import Model


def start_values(
    model: Model, init: str | Mapping[str, Tensor], chains: int, seed: int
) -> dict[str, Tensor]:
    """Stacked values ``(C, *shape)`` of every parameter; those that are not random are the same in
    all chains.
    """
    own = model.values()
    if isinstance(init, Mapping):
        return _given(model, init, own, chains)
    if init in ("random", "annealing"):
        each = [model.random_values(mix(seed, "chain", c)) for c in range(chains)]
        out = {n: torch.stack([values[n] for values in each]) for n in own}
        return {n: v if n in model.random else v[:1].expand_as(v) for n, v in out.items()}
    if init == "prior":
        return prior_draws(model, own, range(chains), mix(seed, "chains"))
    return {n: v.expand(chains, *v.shape) for n, v in own.items()}


def _given(
    model: Model, init: Mapping[str, Tensor], own: dict[str, Tensor], chains: int
) -> dict[str, Tensor]:
    for name, value in init.items():
        if (
            name in own
            and value.dim() == own[name].dim() + 1
            and value.shape[1:] == own[name].shape
            and len(value) != chains
        ):
            raise SettingError(
                f"init gives {name!r} for {len(value)} chains, but there are {chains}; give as "
                "many, or one for all."
            )
    stacked = {n: v for n, v in init.items() if n in own and v.shape == (chains, *own[n].shape)}
    rest = model.values({n: v for n, v in init.items() if n not in stacked})
    out = {n: v.expand(chains, *v.shape) for n, v in rest.items()}
    return out | {n: v.detach().to(own[n]) for n, v in stacked.items()}
