"""What a saved model consists of: a JSON description and one safetensors file.

Nothing is ever unpickled.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from credo.core.atomic import (
    read_json,
    read_tensors,
    replace_directory,
    write_atomic,
    write_json,
    write_tensors,
)
from credo.core.errors import Finding, RunError
from credo.core.standardised import Standardised
from credo.data.checks import InputRange
from credo.engine.model import Fitted, Model
from credo.likelihoods.base import Likelihood, likelihoods
from credo.posteriors import Posterior
from credo.priors import Prior, Scaled, Unstored

FORMAT = 1
CONFIG, HISTORY, POSTERIOR = "config.json", "history.jsonl", "posterior.safetensors"
MAPPED = (
    1 << 28
)  # bytes from which a tensor stays in its file: draws of large networks, read when they are used


def stored_config(path: Path) -> dict[str, Any] | None:
    """The config in a directory, or None where nothing is stored yet; one written by a newer credo
    is refused.
    """
    if not (path / CONFIG).exists():
        if path.exists() and any(not item.name.startswith(".") for item in path.iterdir()):
            raise RunError(f"{path} is not empty and holds no run; choose another directory.")
        return None
    config = read_json(path / CONFIG)
    if not isinstance(config, dict) or not isinstance(config.get("format"), int):
        raise RunError(f"{path / CONFIG} is not a run's config.")
    if config["format"] > FORMAT:
        raise RunError(
            f"{path} was written by a newer credo (format {config['format']}, this one "
            f"reads {FORMAT}); upgrade credo."
        )
    return config


def stored_history(path: Path) -> list[dict[str, Any]]:
    """The rows of the history in a directory; half a line, as a crash leaves it, is none."""
    rows, file = [], path / HISTORY
    for line in file.read_text().splitlines() if file.exists() else ():
        with contextlib.suppress(json.JSONDecodeError):
            rows.append(json.loads(line))
    return rows


def stored_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The method's settings of a stored config, without those that had no JSON form."""
    plain = {k: tuple(v) if isinstance(v, list) else v for k, v in config["settings"].items()}
    return {k: v for k, v in plain.items() if not (isinstance(v, str) and v.startswith("<"))}


def save(
    path: str | os.PathLike[str],
    fitted: Fitted,
    model: Model,
    prior: Prior,
    method: tuple[str, Mapping[str, Any]] | None,
    history: Sequence[Mapping[str, Any]],
) -> None:
    """Write a directory of JSON and safetensors, whole or not at all; ``method``: its name and
    settings.
    """
    config = model.config(prior) | fitted.config() | {"format": FORMAT, "complete": True}
    if method is not None:
        config |= dict(zip(("method", "settings"), method, strict=True))
    with replace_directory(path) as beside:
        write_json(beside / CONFIG, config)
        write_tensors(beside / POSTERIOR, fitted.numbers(model))
        lines = "".join(json.dumps(row) + "\n" for row in history)
        write_atomic(beside / HISTORY, lambda file: file.write_text(lines))


def check_network(config: Mapping[str, Any], net: nn.Module, path: Any) -> None:
    """Refuse a network whose trainable parameters are not those that were fitted, by name and
    shape.
    """
    own = {name: list(p.shape) for name, p in net.named_parameters() if p.requires_grad}
    for name, shape in config["parameters"].items():
        if own.get(name) != shape:
            raise RunError(
                f"{path} was fitted with {name!r} of shape {shape}; this network has "
                f"{own.get(name, 'no such parameter')}."
            )
    extra = next((name for name in own if name not in config["parameters"]), None)
    if extra is not None:
        raise RunError(
            f"{path} was fitted without {extra!r}, which this network has; build the network that "
            "was fitted."
        )


def load_prior(model: Model, numbers: Mapping[str, Tensor]) -> None:
    """Put what was learned of the prior back into it."""
    if not numbers and isinstance(model.prior, Scaled) and isinstance(model.prior.base, Unstored):
        model.prior = model.prior.base  # such as an earlier posterior, of which no width was tuned
    parts = nn.ModuleList(model.prior.parts())
    if numbers or parts:
        parts.load_state_dict(dict(numbers))
        parts.requires_grad_(False)


def stored_units(path: Path) -> Standardised | None:
    """What the data of a fit were standardised by, if they were."""
    if "standardised" not in (stored_config(path) or {}):
        return None
    tensors, kind = read_tensors(path / POSTERIOR)[0], "standardised/"
    return Standardised.of(
        {n.removeprefix(kind): t for n, t in tensors.items() if n.startswith(kind)}
    )


def unpack(
    path: Path, own: Likelihood | None = None
) -> tuple[dict[str, Any], Fitted, Likelihood, dict[str, Tensor]]:
    """Config, posterior with buffers, likelihood, and the learned numbers of the prior, of a saved
    model or a finished run.

    ``own``: a likelihood to copy and to give the stored numbers, needed where the registry has none
    of that name.
    """
    config = stored_config(path) if path.is_dir() else None
    if config is None:
        raise RunError(
            f"{path} holds no saved model; expected a directory written by save() or fit(run=...)."
        )
    if "posterior" not in config:
        raise RunError(
            f"The run in {path} is not finished; resume it first (credo fit --resume, or fit with "
            "the same run=)."
        )
    tensors, _ = read_tensors(path / POSTERIOR)

    def part(kind: str) -> dict[str, Tensor]:
        return {
            name.removeprefix(f"{kind}/"): tensor
            for name, tensor in tensors.items()
            if name.startswith(f"{kind}/")
        }

    try:
        name = config["likelihood"]["name"]
        if own is not None and own.name != name:
            raise RunError(
                f"{path} was fitted with the {name} likelihood, not with {own.name}; give one of "
                "that name."
            )
        if own is None and name not in likelihoods:
            raise RunError(
                f"{path} was fitted with the likelihood {name!r}, which no registry holds: pass "
                "it as likelihood=, or load the run with "
                "what made it (credo.generative.load for autoencoders)."
            )
        likelihood = (
            copy.deepcopy(own)
            if own
            else likelihoods[name].from_config(config["likelihood"]["config"])
        )
        likelihood.load_state_dict(part("likelihood"))
        posterior = Posterior.from_config(config["posterior"])
        numbers = {n: t if t.nbytes > MAPPED else t.clone() for n, t in part("posterior").items()}
        posterior.load_state_dict(numbers, assign=True)
    except (KeyError, TypeError, RuntimeError) as error:
        raise RunError(
            f"{path} does not fit together: {str(error).splitlines()[0]}; restore it from a copy."
        ) from error
    findings = [Finding(**each) for each in config.get("findings", ())]
    seen = InputRange.stored(part("inputs"))
    fitted = Fitted(posterior, part("buffers"), findings, config.get("trial"), seen)
    return config, fitted, likelihood, part("prior")
