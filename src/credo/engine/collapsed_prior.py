"""Empirical Bayes: say so when a learned prior has become a copy of the posterior."""

from __future__ import annotations

import warnings

import torch

from credo.core.seeds import Streams
from credo.engine.model import Model
from credo.posteriors import Posterior, kl

COLLAPSED = 0.01  # nats per weight below which the prior says no more than the posterior
DRAWS = 8  # where the KL is sampled; their own streams, so that the global generator stays as found


@torch.no_grad()
def warn_if_collapsed(model: Model, posterior: Posterior) -> None:
    """Warn where the KL to a learned prior is next to nothing: then it no longer holds the weights
    back.

    With a hyperparameter per weight the prior can follow q wherever it goes, and the fit is maximum
    likelihood in disguise; share hyperparameters over more weights, or give them a hyperprior.
    """
    if not model.prior.is_learned:
        return
    for family in posterior.members:
        prior = model.prior_over(family)
        if family.atoms is not None or prior is None or not family.kl_is_bound:
            continue
        share = float(kl(family, prior, Streams(0, range(DRAWS)))) / family.varying
        if share < COLLAPSED:
            warnings.warn(
                f"The learned prior has collapsed onto the posterior: KL {share:.2g} nats per "
                f"weight over {family.varying} weights. "
                "Learn it for larger groups (per='layer'), learn fewer of its arguments, or give "
                "it a hyperprior.",
                stacklevel=4,
            )
