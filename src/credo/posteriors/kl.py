"""KL[q, p] in nats, always a sum over weights: closed form where one is known, sampled over draws
otherwise.

For any Gaussian q and elementwise p the closed form needs only marginals: with h the entropy of one
normal, KL[q, p] = sum_i (KL[N(m_i, v_i), p] + h_i) - H[q], and torch's own table of KLs between
distributions gives the terms.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Distribution, MultivariateNormal, Normal, kl_divergence, register_kl

from credo.core.errors import CredoError, SettingError
from credo.core.seeds import Ambient, Noise
from credo.core.sites import Site
from credo.posteriors.delta import Delta
from credo.posteriors.discrete import Discrete
from credo.posteriors.family import Family, Gaussian, Params
from credo.posteriors.full import Full
from credo.posteriors.group_scale import GroupScale
from credo.posteriors.mean_field import MeanField, NormalStats
from credo.posteriors.multiplicative import Multiplicative
from credo.posteriors.posterior import Posterior
from credo.posteriors.sparse_vd import SparseVD
from credo.posteriors.subnetwork import Subnetwork
from credo.posteriors.zero_mean import ZeroMean
from credo.priors import Flat, Prior
from credo.priors.base import JointLogProb


@register_kl(Normal, Flat)
def _kl_normal_flat(q: Normal, p: Flat) -> Tensor:
    """-H[q]: the flat prior has density 1, so this is a KL only up to a constant."""
    return -q.entropy()


@dataclass(frozen=True)
class Factorised:
    """An elementwise prior over a family's parameters."""

    distributions: Mapping[str, Distribution]
    shapes: Mapping[str, torch.Size]

    def log_prob(self, params: Params) -> Tensor:
        """Log density summed over elements, leading axes kept."""
        out: Tensor | float = 0.0
        for name, shape in self.shapes.items():
            log_prob = self.distributions[name].log_prob(params[name])
            out = out + (
                log_prob.flatten(log_prob.dim() - len(shape)).sum(-1) if len(shape) else log_prob
            )
        assert isinstance(out, Tensor)
        return out

    def log_prob_each(self, params: Params) -> Params:
        """Log density element by element."""
        return {name: self.distributions[name].log_prob(params[name]) for name in self.shapes}

    def sample(self, n: int, like: Params) -> Params:
        """``n`` draws of every parameter from the global generator, in the dtype and on the device
        of ``like``.
        """
        out = {}
        for name, shape in self.shapes.items():
            missing = shape[: len(shape) - len(self.distributions[name].batch_shape)]
            out[name] = self.distributions[name].sample(torch.Size([n, *missing])).to(like[name])
        return out


FamilyPrior = Factorised | Family


class PosteriorPrior(Prior):
    """Yesterday's posterior as today's prior: independent Gaussians are taken elementwise, joint
    ones as a whole.
    """

    def __init__(self, posterior: Posterior) -> None:
        self.posterior = posterior

    def at(self, site: Site) -> Distribution:
        """The marginal of one parameter under an independent family."""
        for family in self.posterior.members:
            if site.name in family.names:
                if isinstance(family, MeanField):
                    return Normal(
                        family.mean()[site.name].detach(),
                        family.std()[site.name].detach(),
                        validate_args=False,
                    )
                raise CredoError(
                    f"{site.name!r} has no elementwise prior: the earlier posterior is "
                    f"{family.name!r} over {family.names}."
                )
        raise CredoError(
            f"The posterior given as prior does not cover {site.name!r}; it covers "
            f"{', '.join(self.posterior.names)}."
        )

    def describe(self) -> str:
        """Which families."""
        return "posterior: " + ", ".join(family.name for family in self.posterior.members)

    def joint_log_prob(self, names: Collection[str]) -> JointLogProb:
        """The sum over the earlier families; refused unless they have a density over exactly these
        parameters.
        """
        families = [f for f in self.posterior.members if set(f.names) & set(names)]
        covered = sorted(name for f in families for name in f.names)
        if covered != sorted(names) or any(f.atoms is not None for f in families):
            raise SettingError(
                f"The earlier posterior ({self.describe()}) has no density over the same "
                "parameters; fit with 'vi' first."
            )
        return lambda params: torch.stack(
            [f.log_prob({n: params[n] for n in f.names}) for f in families]
        ).sum(0)

    def over(self, family: Family) -> FamilyPrior | None:
        """A joint prior with exactly this family's parameters, if there is one that is not
        elementwise.
        """
        for earlier in self.posterior.members:
            if set(earlier.names) == set(family.names) and not isinstance(
                earlier, (MeanField, Delta, Subnetwork)
            ):
                return earlier
        return None


def prior_of(family: Family, prior: Prior, sites: Mapping[str, Site]) -> FamilyPrior:
    """The part of a prior that concerns one family."""
    if isinstance(prior, PosteriorPrior):
        joint = prior.over(family)
        if joint is not None:
            return joint
    return Factorised(
        {n: family.restrict(prior.at(sites[n]), n) for n in family.names}, family.shapes
    )


def fold(family: Family, prior: FamilyPrior | None) -> NormalStats | None:
    """Prior mean and variance for a family that folds its KL into the draw; None where that does
    not apply.
    """
    if not (isinstance(family, MeanField) and isinstance(prior, Factorised)):
        return None
    normals = [d for d in prior.distributions.values() if type(d) is Normal]
    if len(normals) < len(prior.distributions):
        return None
    like = family.flat_mean.detach()
    moments = [(d.loc.detach().to(like), d.scale.detach().to(like) ** 2) for d in normals]
    centred = not any(bool(m.any()) for m, _ in moments)
    parts = [[m for m, _ in moments], [v for _, v in moments]]
    if all(p.numel() == 1 and bool(p == column[0]) for column in parts for p in column):
        mean, var = (column[0].reshape(()) for column in parts)
    else:
        shapes = family.shapes.values()
        mean, var = (
            torch.cat([p.expand(s).reshape(-1) for p, s in zip(column, shapes, strict=True)])
            for column in parts
        )
    return NormalStats(None if centred else mean, var)


def closed_kl(family: Family, prior: FamilyPrior) -> Tensor | None:
    """The closed form, or None where none is known."""
    if isinstance(family, Delta):
        return -prior.log_prob(family.mean())
    if isinstance(family, Full) and isinstance(prior, Full) and family.names == prior.names:
        return kl_divergence(
            *(
                MultivariateNormal(f.flat_mean, scale_tril=f.scale_tril(), validate_args=False)
                for f in (family, prior)
            )
        )
    if isinstance(family, Discrete) and isinstance(prior, Factorised):
        return family.kl(prior.distributions)
    if (
        isinstance(family, Discrete)
        and isinstance(prior, Discrete)
        and family.levels.tolist() == prior.levels.tolist()
    ):
        return family.kl(prior)
    if isinstance(family, Multiplicative) and isinstance(prior, Factorised):
        return family.kl(prior.distributions)
    if isinstance(family, GroupScale) and isinstance(prior, Factorised):
        return family.kl(prior.distributions)
    if isinstance(family, Subnetwork) and isinstance(prior, Factorised):
        return family.kl(prior.distributions)
    if (
        isinstance(family, (SparseVD, ZeroMean))
        and isinstance(prior, Factorised)
        and (found := family.kl(prior.distributions)) is not None
    ):
        return found
    if isinstance(family, Gaussian) and isinstance(prior, Factorised):
        return _marginal_kl(family, prior)
    return None


def _marginal_kl(family: Gaussian, prior: Factorised) -> Tensor | None:
    means, variances = family.marginals()
    total = -family.entropy()
    for name in family.names:
        q = Normal(means[name], variances[name].sqrt(), validate_args=False)
        try:
            total = total + (kl_divergence(q, prior.distributions[name]) + q.entropy()).sum()
        except NotImplementedError:
            return None
    return total


def sampled_kl(
    family: Family, prior: FamilyPrior, noise: Noise, latents: Params | None = None
) -> Tensor:
    """log q(w) - log p(w) for every draw of ``noise``, or for given ``latents``: an unbiased
    estimate of the KL whatever the pair.
    """
    latents = family.latents(noise) if latents is None else latents
    return family.log_prob(latents) - prior.log_prob(
        family.assemble(latents) if isinstance(prior, Factorised) else latents
    )


def kl(
    family: Family, prior: FamilyPrior, noise: Noise | None = None, latents: Params | None = None
) -> Tensor:
    """KL[q, p], summed over weights; where no closed form is known sampled with ``noise``, or of
    ``latents`` drawn already.
    """
    closed = closed_kl(family, prior)
    if closed is not None:
        return closed
    try:
        return sampled_kl(family, prior, noise or Ambient(), latents).mean()
    except CredoError as error:
        given = prior.name if isinstance(prior, Family) else prior.distributions
        raise CredoError(
            f"No KL between the family {family.name!r} and the prior {given}: {error}"
        ) from error
