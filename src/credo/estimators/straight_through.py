"""Gradients through discrete weights: straight-through, and the Gumbel-softmax relaxation with hard
values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from credo.core.errors import SettingError
from credo.core.seeds import Noise
from credo.estimators.base import Estimator, estimators
from credo.posteriors import Draw, Family, FamilyPrior, Params, Posterior


class _Discrete(Estimator):
    """What both share: point estimates pass through, continuous families are refused."""

    def check(self, posterior: Posterior) -> None:
        """Only discrete families and point estimates."""
        for family in posterior.factors:
            if family.reparameterised and family.atoms != 1:
                raise SettingError(
                    f"estimator={self.name!r} is for discrete weights; the family {family.name!r} "
                    "is continuous: use 'local'."
                )

    def kl(self, draw: Draw, family: Family, prior: FamilyPrior, sampled: bool) -> Tensor:
        """Always the closed form: a sampled KL has no gradient through discrete weights."""
        closed = family.kl(prior)
        if closed is not None and not (sampled and not family.reparameterised):
            return closed
        raise SettingError(
            f"estimator={self.name!r} needs the KL of the family {family.name!r} in closed form; "
            "use kl='closed' with a prior on "
            "the same levels, or estimator='score'."
        )


class StraightThrough(_Discrete):
    """w = draw, with the gradient of E[w] (Bengio et al.

    2013): low variance, biased unless the loss is linear in w.
    """

    name: ClassVar[str] = "straight_through"

    def fill(self, draw: Draw, family: Family, names: Sequence[str], noise: Noise) -> Params:
        """Hard values whose gradient is the mean's."""
        return draw.weights(names) if family.reparameterised else draw.straight_through(names)


class Gumbel(_Discrete):
    """w = draw by the Gumbel-max trick, with the gradient of its softmax at a temperature (Jang et
    al. 2017; Maddison et al. 2017).

    A lower temperature has less bias and more variance.
    """

    name: ClassVar[str] = "gumbel"

    def __init__(self, temperature: float = 0.5) -> None:
        self.temperature = temperature

    def at(self, temperature: float) -> Estimator:
        """With another temperature."""
        return Gumbel(temperature)

    def fill(self, draw: Draw, family: Family, names: Sequence[str], noise: Noise) -> Params:
        """Hard values whose gradient is the relaxation's."""
        return (
            draw.weights(names) if family.reparameterised else draw.relaxed(names, self.temperature)
        )


estimators.register("straight_through")(StraightThrough())
estimators.register("gumbel")(Gumbel())
