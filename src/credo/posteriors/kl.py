"""KL[q, p] in nats, always a sum over weights: closed form where the family has one
(:meth:`Family.kl`), sampled over draws otherwise.
"""

from __future__ import annotations

from torch import Tensor

from credo.core.errors import CredoError
from credo.core.seeds import Ambient, Noise
from credo.posteriors.draw import Params
from credo.posteriors.family import Family, FamilyPrior


def sampled_kl(
    family: Family, prior: FamilyPrior, noise: Noise, latents: Params | None = None
) -> Tensor:
    """log q(w) - log p(w) for every draw of ``noise``, or for given ``latents``: an unbiased
    estimate of the KL whatever the pair.
    """
    latents = family.latents(noise) if latents is None else latents
    return family.log_prob(latents) - family.log_prior(prior, latents)


def kl(
    family: Family, prior: FamilyPrior, noise: Noise | None = None, latents: Params | None = None
) -> Tensor:
    """KL[q, p], summed over weights; where no closed form is known sampled with ``noise``, or of
    ``latents`` drawn already.
    """
    closed = family.kl(prior)
    if closed is not None:
        return closed
    try:
        return sampled_kl(family, prior, noise or Ambient(), latents).mean()
    except CredoError as error:
        given = prior.elementwise or prior
        raise CredoError(
            f"No KL between the family {family.name!r} and the prior {given}: {error}"
        ) from error
