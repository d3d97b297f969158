"""Autoencoders from disk."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from credo.bnn import load as load_bnn
from credo.core.errors import RunError
from credo.engine.run import Run
from credo.generative.bounds import Bound
from credo.generative.codes import codes
from credo.generative.evidence import Evidence
from credo.generative.model import LatentModel
from credo.generative.priors import priors
from credo.generative.vae import kinds
from credo.likelihoods.base import likelihoods


def load(path: str | os.PathLike[str], encoder: nn.Module, decoder: nn.Module, device: torch.device | str | None = None) -> Any:
    """A saved autoencoder or finished run, for an encoder and a decoder of the same structure."""
    config = Run(path).config() if Path(path).is_dir() else None
    about: Mapping[str, Any] = ((config or {}).get("likelihood") or {}).get("config") or {}
    if about.get("kind") not in kinds:
        raise RunError(f"{path} holds no autoencoder; expected a directory written by VAE.save or VAE.fit(run=...).")
    posterior, prior = dict(about["posterior"]), dict(about["prior"])
    code = codes[posterior.pop("name")](about["latent_dim"], **posterior)
    data = likelihoods[about["data"]["name"]].from_config(about["data"]["config"])
    model: LatentModel = kinds[about["kind"]].restore(
        encoder, decoder, code, data, priors[prior.pop("name")](code.size, **prior), about["binarise"]
    )
    net = model._build(tuple(about["shape"]))
    net.climbing(Bound(**about["bound"]), [])
    model._bnn = load_bnn(path, net, device=device, likelihood=Evidence(**about))
    return model
