"""Chains in the form that ArviZ reads."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from credo.audit.diagnostics import chains_of, function_draws
from credo.bnn import BNN
from credo.core.errors import CredoError

#: What a sampler's history calls it -> ArviZ's name.
STATISTICS = {
    "divergent": "diverging",
    "energy": "energy",
    "log_density": "lp",
    "acceptance": "acceptance_rate",
    "step_size": "step_size",
    "steps": "n_steps",
    "depth": "tree_depth",
}


def to_arviz(bnn: BNN, x: Any = None) -> Any:
    """The draws as ``arviz.InferenceData`` (from ArviZ 1 on, an ``xarray.DataTree`` with the same
    groups).

    ``posterior``: one variable per parameter, ``(chain, draw, *shape)``. ``sample_stats``: what the
    history holds of the draws; numbers that samplers record for all chains together have the
    dimension ``draw`` alone. With ``x``: ``predictions``, whose variable ``functions`` holds the
    network's outputs ``(chain, draw, input, output)``. Fails for posteriors that are not chains.
    """
    found = chains_of(bnn)
    arviz, xarray = _package("arviz"), _package("xarray")
    axes = {"chain": range(found.chains), "draw": range(found.draws)}
    variables = {}
    for name, value in found.params.items():
        dims = ("chain", "draw", *(f"{name}_dim_{axis}" for axis in range(value.dim() - 2)))
        variables[name] = (dims, value.detach().cpu().numpy())
    groups = {"posterior": xarray.Dataset(variables, axes)}
    statistics = _statistics(bnn, found.chains, found.draws)
    if statistics:
        groups["sample_stats"] = xarray.Dataset(statistics, axes)
    if x is not None:
        outputs = function_draws(bnn, x).detach().cpu().numpy()
        groups["predictions"] = xarray.Dataset(
            {"functions": (("chain", "draw", "input", "output"), outputs)}, axes
        )
    for dataset in groups.values():
        dataset.attrs |= {
            "inference_library": "credo",
            "method": bnn.method.name if bnn.method else "",
        }
    inference_data = getattr(arviz, "InferenceData", None)
    if inference_data is None:  # ArviZ 1 has given it up for xarray's own tree
        return xarray.DataTree.from_dict(groups)
    return inference_data(**groups)


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise CredoError(
            "to_arviz needs ArviZ, which is not installed; pip install arviz."
        ) from error


def _statistics(bnn: BNN, chains: int, draws: int) -> dict[str, Any]:
    """Columns of the history by ArviZ's names; a history that does not belong to these draws gives
    none.
    """
    rows = [row for row in bnn.history if row.get("warmup") is False]
    out: dict[str, Any] = {}
    if len(rows) != draws:
        return out
    for key, name in STATISTICS.items():
        if any(key not in row for row in rows):
            continue
        values = torch.tensor([row[key] for row in rows], dtype=torch.float64)
        values = values > 0 if key == "divergent" else values
        if values.dim() == 1:
            out[name] = (("draw",), values.numpy())
        elif values.shape[1] == chains:
            out[name] = (("chain", "draw"), values.mT.numpy())
    return out
