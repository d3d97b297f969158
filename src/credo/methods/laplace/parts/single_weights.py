"""A subnetwork: single weights of any layers, chosen at the trained values, with all of their
curvature; the unfactored stay where they are.

With the other weights as constants this is the curvature of the log-likelihood by the chosen ones,
so nothing is left out of it but how they make up for the fixed ones. Daxberger et al. 2021,
Bayesian deep learning via subnetwork inference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from credo.core.errors import SettingError, nearest
from credo.core.tree import take
from credo.curvature.blocks import DiagonalBlock, SubnetworkBlock
from credo.curvature.log_evidence import elementwise_prior
from credo.curvature.structures import Gram, Measured, diagonal
from credo.curvature.sweep import BUDGET, ObservedBatch, Sweep, example_jacobians, observe
from credo.curvature.taps import Tap, layer_jacobians, untapped
from credo.engine.model import Model

Chosen = Mapping[
    str, Tensor
]  # flat places of single weights, ascending, by parameter with at least one


def largest_variance(sweep: Sweep, size: int) -> Chosen:
    """The weights with the largest 1 / (h + d), h the diagonal of the curvature and d the prior's
    precision as it stands.

    Among independent Gaussians these leave the posterior nearest to that of all weights, in
    Wasserstein distance. A weight that no example reaches has the prior's variance, the largest
    there is.
    """
    precision = elementwise_prior(sweep.model, sweep.values).precision
    found = {}
    for block in diagonal(sweep).blocks:
        assert isinstance(block, DiagonalBlock)
        found |= {name: 1.0 / (h.double() + precision[name]) for name, h in block.diagonal.items()}
    return _largest(sweep.model, found, size)


def largest_magnitude(sweep: Sweep, size: int) -> Chosen:
    """The weights farthest from zero."""
    return _largest(
        sweep.model,
        {name: sweep.values[name].detach().abs().double() for name in sweep.model.random},
        size,
    )


CHOICES: dict[str, Callable[[Sweep, int], Chosen]] = {
    "largest_variance": largest_variance,
    "largest_magnitude": largest_magnitude,
}


def _largest(model: Model, scores: Mapping[str, Tensor], size: int) -> Chosen:
    """Where the largest numbers are; among equal ones the first."""
    flat = torch.cat([scores[name].reshape(-1) for name in model.random])
    mask = torch.zeros(len(flat), dtype=torch.bool, device=flat.device)
    mask[flat.argsort(descending=True, stable=True)[:size]] = True
    pieces = mask.split([site.numel for site in model.random.values()])
    return {
        name: piece.nonzero().reshape(-1)
        for name, piece in zip(model.random, pieces, strict=True)
        if bool(piece.any())
    }


def masked(masks: Mapping[str, Any], model: Model) -> Chosen:
    """The weights that boolean masks by parameter mark, each in its parameter's shape; masks that
    mark nothing are refused.
    """
    sites, found = model.sites, {}
    for name, given in masks.items():
        if name not in sites:
            raise SettingError(
                f"subset: a mask is given for {name!r}, which is no trainable "
                f"parameter.{nearest(str(name), sites)}"
            )
        try:
            mask = torch.as_tensor(given, device=model.device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise SettingError(
                f"subset: the mask of {name!r} cannot be read as a tensor ({error}); give one of "
                "torch.bool."
            ) from error
        if mask.dtype != torch.bool:
            raise SettingError(
                f"subset: the mask of {name!r} is of {mask.dtype}; expected torch.bool, True "
                "where a weight is random."
            )
        if mask.shape != sites[name].shape:
            raise SettingError(
                f"subset: the mask of {name!r} has shape {tuple(mask.shape)}; expected that of "
                f"the parameter, {tuple(sites[name].shape)}."
            )
        if bool(mask.any()):
            found[name] = mask.reshape(-1).nonzero().reshape(-1)
    if not found:
        raise SettingError(
            f"subset: the masks of {', '.join(masks) or 'no parameter'} choose no weight; set at "
            "least one to True."
        )
    return {name: found[name] for name in sites if name in found}


def subnetwork(sweep: Sweep, chosen: Chosen) -> Measured:
    """All curvature of the chosen weights, ``(S, S)``; where layers have factors, no derivative by
    the other weights is written out.

    One direction of the outputs after another, so that a large network's gradients are held once
    and not for each of them.
    """
    sweep = replace(sweep, model=sweep.model.only(chosen))
    chosen = {name: chosen[name] for name in sweep.model.random}
    taps = sweep.taps()
    unfactored = untapped(sweep.model, taps)
    first = next(iter(sweep.values.values()))
    total, nll = Gram(sum(map(len, chosen.values())), first), 0.0
    size = max(1, BUDGET // _written(sweep.model, taps, chosen))
    for x, batch in observe(sweep, taps):
        nll += batch.nll
        for column, grads in zip(batch.root.split(1, -1), batch.grads, strict=True):
            for start in range(0, batch.examples, size):
                part = slice(start, start + size)
                parts = _columns(taps, chosen, batch, grads, part)
                if unfactored:
                    found = example_jacobians(
                        sweep.model,
                        sweep.values,
                        sweep.buffers,
                        unfactored,
                        take(x, part),
                        column[part],
                    )
                    parts |= {name: found[name][..., chosen[name]] for name in unfactored}
                total.add(torch.cat([parts[name] for name in chosen], -1))
    return Measured([SubnetworkBlock(chosen, total.matrix())], nll, chosen)


def _written(model: Model, taps: Mapping[str, Tap], chosen: Chosen) -> int:
    """Numbers of one derivative that are written out on the way: of parameters without factors all,
    else what ``Rows.at`` needs.
    """
    places = {name: tap.places for tap in taps.values() for name in tap.names}
    total = 0
    for name, site in model.random.items():
        count = len(chosen[name])
        total += count + (min(places[name] * count, site.numel) if name in places else site.numel)
    return total


def _columns(
    taps: Mapping[str, Tap],
    chosen: Chosen,
    batch: ObservedBatch,
    grads: Mapping[str, Tensor],
    part: slice,
) -> dict[str, Tensor]:
    """A few examples' derivatives in one direction by the chosen weights of layers with factors,
    ``(n, 1, S)`` by parameter.
    """
    parts: dict[str, Tensor] = {}
    for path, tap in taps.items():
        found = layer_jacobians(tap, batch.inputs[path][part], grads[path][part].unsqueeze(1))
        parts |= {name: part.at(chosen[name]) for name, part in found.items()}
    return parts
