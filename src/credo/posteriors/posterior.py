"""The posterior over all parameters: a product of families; and the KL of one of them from its
prior, in nats and always a sum over weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from credo.core.errors import CredoError
from credo.core.seeds import Ambient, Noise, Streams
from credo.posteriors.draw import Draw, Params
from credo.posteriors.family import Family, FamilyPrior, families
from credo.posteriors.process import Process
from credo.posteriors.samples import Samples


class Posterior(nn.Module):
    """q(w) = prod_k q_k(w_k). The point estimates of a model are in it too, as a :class:`Delta`, so
    one draw runs the network.
    """

    def __init__(self, factors: Iterable[Family]) -> None:
        super().__init__()
        self.families = nn.ModuleList(factors)

    @property
    def factors(self) -> list[Family]:
        """The families q_k, in order."""
        return list(self.families)  # type: ignore[arg-type]

    @property
    def members(self) -> list[Family]:
        """What :attr:`factors` was called before; the name goes with the next release."""
        return self.factors

    @property
    def names(self) -> tuple[str, ...]:
        """All parameters covered."""
        return tuple(name for family in self.factors for name in family.names)

    @property
    def atoms(self) -> int | None:
        """Number of points if the posterior is discrete (1 for a point estimate), else None."""
        counts = [family.atoms for family in self.factors]
        return (
            None
            if any(count is None for count in counts)
            else max((c for c in counts if c), default=1)
        )

    @property
    def fixed(self) -> frozenset[str]:
        """Parameters that no draw changes."""
        return frozenset(name for family in self.factors for name in family.fixed)

    @property
    def noisy_modules(self) -> frozenset[str]:
        """Modules of the network whose own noise belongs to a draw."""
        return frozenset(path for family in self.factors for path in family.noisy_modules)

    @property
    def process(self) -> Process | None:
        """The factor that draws functions instead of weights, if there is one."""
        return next((family for family in self.factors if isinstance(family, Process)), None)

    def monitor(self) -> dict[str, float]:
        """Numbers worth watching while it is fitted."""
        return {key: value for family in self.factors for key, value in family.monitor().items()}

    def components(self) -> list[Posterior]:
        """The posteriors this one is a mixture of; itself alone where it is none."""
        factors = self.factors
        return (factors[0].parts if len(factors) == 1 else None) or [self]

    def begin(self, noise: Noise, folds: Sequence[Any] | None = None) -> list[Draw]:
        """Draw the latents of one pass, family by family."""
        folds = folds or [None] * len(self.factors)
        draws = []
        for family, fold in zip(self.factors, folds, strict=True):
            draw = family.begin(noise, fold)
            draw.owner = family
            draws.append(draw)
        return draws

    def draw(self, noise: Noise) -> Params:
        """One joint draw of every parameter, with the noise's leading axes in front."""
        return {
            name: value for family in self.factors for name, value in family.draw(noise).items()
        }

    def mean(self) -> Params:
        """E[w] by name."""
        return {name: value for family in self.factors for name, value in family.mean().items()}

    def sample(self, n: int, seed: int = 0) -> Params:
        """``n`` draws ``(n, *shape)`` of every parameter; draw i of a seed is always the same."""
        with torch.no_grad():
            return self.draw(Streams(seed, range(n)))

    def log_prob(self, params: Params) -> Tensor:
        """Log density of the parameters that have one; leading axes are kept.

        Point estimates do not count.
        """
        with_density = [family for family in self.factors if family.atoms != 1]
        if not with_density:
            raise CredoError(
                "This posterior is a point estimate and has no density; fit with a method that "
                "has spread, e.g. 'vi'."
            )
        return torch.stack(
            [family.log_prob({n: params[n] for n in family.names}) for family in with_density]
        ).sum(0)

    def numbers(self, samples: int) -> list[int]:
        """Which draws prediction uses: 0..samples-1, or each atom of a discrete posterior once
        (evenly spaced if fewer).
        """
        if self.atoms is None:
            return list(range(samples))
        count = min(samples, self.atoms)
        return [i * self.atoms // count for i in range(count)]

    def realise(
        self, numbers: Sequence[int], seed: int, workspace: dict[object, Tensor] | None = None
    ) -> Params:
        """The draws with these numbers, stacked in front; with a ``workspace`` they last until the
        next call that gets it.
        """
        noise = Streams(seed, numbers, workspace)
        out: Params = {}
        for family in self.factors:
            if isinstance(family, Samples) and self.atoms is not None:
                out |= family.atom(numbers, workspace)
            else:
                out |= family.draw(noise)
        return out

    def config(self) -> dict[str, Any]:
        """JSON-able description of the families."""
        return {"families": [family.config() for family in self.factors]}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Posterior:
        """An empty posterior of this structure, to load a state into."""
        return cls([families[item["name"]].from_config(item) for item in config["families"]])


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
