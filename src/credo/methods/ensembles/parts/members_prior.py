"""The prior of every member, -log p(w) ``(K,)``, in two parts: what an optimizer takes into its own
step as weight decay, and penalties that are differentiated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor
from torch.distributions import Normal

from credo.engine.model import Model
from credo.posteriors import FamilyPrior, Params
from credo.priors import Factorised, Flat


class Penalty(NamedTuple):
    """-log p of the parameters ``names`` under ``prior``."""

    names: tuple[str, ...]
    prior: FamilyPrior


@final
class MembersPrior:
    """The priors of all parameters that have one; ``member``: values of one member."""

    def __init__(self, model: Model, member: Params) -> None:
        families = model.point_posterior(member).factors
        priors = ((f.names, model.prior_over(f)) for f in families)
        self.all = [Penalty(names, prior) for names, prior in priors if prior is not None]

    def weight_decays(self) -> dict[str, float]:
        """1 / std^2 of parameters under a normal prior around zero, whose gradient w / std^2 an
        optimizer adds by itself.
        """
        out = {}
        for _, prior in self.all:
            for name, given in (prior.elementwise or {}).items():
                if (
                    type(given) is Normal
                    and given.loc.numel() == given.scale.numel() == 1
                    and not bool(given.loc.any())
                ):
                    out[name] = 1.0 / float(given.scale) ** 2
        return out

    def penalties(self) -> list[Penalty]:
        """What is neither weight decay nor flat."""
        decayed, out = self.weight_decays(), []
        for names, prior in self.all:
            each = prior.elementwise
            if each is not None:
                left = {
                    n: d for n, d in each.items() if n not in decayed and not isinstance(d, Flat)
                }
                names, prior = tuple(left), Factorised(left, {n: prior.shapes[n] for n in left})
            if names:
                out.append(Penalty(names, prior))
        return out


def minus_log_prior(penalties: Sequence[Penalty], values: Params) -> Tensor:
    """-log p(w) ``(K,)`` of members ``(K, *shape)`` under these priors."""
    parts = [-prior.log_prob({n: values[n] for n in names}) for names, prior in penalties]
    return torch.stack(parts).sum(0)
