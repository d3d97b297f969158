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
from credo.generative.autoencoders import kinds
from credo.generative.bounds import Bound
from credo.generative.codes import codes
from credo.generative.latent_model import LatentModel
from credo.generative.own_units import Units
from credo.generative.priors import priors
from credo.generative.vae_evidence import Evidence
from credo.likelihoods.base import likelihoods


def load(
    path: str | os.PathLike[str],
    encoder: nn.Module,
    decoder: nn.Module,
    device: torch.device | str | None = None,
) -> Any:
    """A saved autoencoder or finished run, for an encoder and a decoder of the same structure."""
    config = Run(path).config() if Path(path).is_dir() else None
    stored = (config or {}).get("likelihood")
    about: Any = stored.get("config") if isinstance(stored, Mapping) else None
    if not isinstance(about, Mapping) or about.get("kind") not in kinds:
        raise RunError(
            f"{path} holds no autoencoder; expected a directory written by VAE.save or "
            "VAE.fit(run=...)."
        )
    try:
        posterior, prior = dict(about["posterior"]), dict(about["prior"])
        code = codes[posterior.pop("name")](about["latent_dim"], **posterior)
        data = likelihoods[about["data"]["name"]].from_config(about["data"]["config"])
        made = priors[prior.pop("name")](code.size, **prior)
        model: LatentModel = kinds[about["kind"]].restore(
            encoder, decoder, code, data, made, about["binarise"]
        )
        net = model._build(tuple(about["shape"]), Units.stored(about.get("standardised")))
        net.train_on(Bound(**about["bound"]), [])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(
            f"The description in {path} is damaged ({error!r}); restore it from a copy."
        ) from error
    bnn = load_bnn(path, net, device=device, likelihood=Evidence(**about))
    model.random = [name.removeprefix("decoder.") for name in bnn.random]
    model.weight_prior = bnn.prior
    model._bnn = bnn
    return model
