"""How randomness enters a forward pass, and what objective comes out of it."""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from credo.core.errors import SettingError
from credo.core.linear_map import LinearMap
from credo.core.registry import Registry
from credo.core.seeds import Ambient, Noise
from credo.core.shell import Shell
from credo.estimators.placement import Plan, Watch, place
from credo.likelihoods.base import Likelihood
from credo.posteriors import Draw, Family, FamilyPrior, Params, Posterior, kl, sampled_kl

estimators: Registry[Estimator] = Registry("estimator")


def weight_estimators() -> tuple[str, ...]:
    """Names of those that train any posterior over weights."""
    return tuple(name for name, each in estimators.items() if not each.for_masks)


def pathwise_estimators(masks: bool = False) -> tuple[str, ...]:
    """Names of those whose gradients go through the draws; with ``masks`` also those of noise that
    multiplies.
    """
    return tuple(n for n, e in estimators.items() if e.pathwise and (e.meets_masks or not masks))


class Pass(NamedTuple):
    """One forward pass: nll summed over the batch, KL of the posterior, the draws that were in
    place, and the nll of each example.
    """

    nll: Tensor
    kl: Tensor
    draws: Sequence[Draw]
    each: Tensor


class Estimator(ABC):
    """Decides what a linear map gives when it meets a random weight, and how passes become the two
    parts of the ELBO.
    """

    name: ClassVar[str]
    #: False: weights are drawn first and the network runs untouched.
    intercepts: ClassVar[bool] = False
    passes: ClassVar[int] = 1  # forward passes per draw
    pathwise: ClassVar[bool] = False  # gradients go through the draws of a continuous family
    meets_masks: ClassVar[bool] = True  # noise on the inputs of layers enters as on weights
    for_masks: ClassVar[bool] = False  # learns the rates of hard masks, and nothing else
    #: What it remembers from step to step, if anything; saved with the run.
    memory: type[nn.Module] | None = None

    def check(self, posterior: Posterior) -> None:
        """Refuse a posterior this estimator has no gradient for."""
        for family in posterior.factors:
            if not family.reparameterised:
                raise SettingError(
                    f"estimator={self.name!r} has no gradient for the discrete family "
                    f"{family.name!r}; "
                    "use 'score', 'straight_through' or 'gumbel'."
                )

    def at(self, temperature: float) -> Estimator:
        """The same estimator at this temperature; itself unless it has one."""
        return self

    def entering(self, how: str) -> Estimator:
        """The same estimator with masks on activations ("local") or on "weights"; itself where that
        is not its to choose.
        """
        return self

    def begin(self, draws: Sequence[Draw]) -> None:
        """See the draws of a pass before anything is drawn from them."""

    def meet(self, draw: Draw, op: LinearMap, x: Tensor, w: str, b: Any, noise: Noise) -> Tensor:
        """The output of ``op`` with the family's noise in it, or NotImplemented: then the site is
        drawn as weights.
        """
        return NotImplemented

    def fill(self, draw: Draw, family: Family, names: Sequence[str], noise: Noise) -> Params:
        """Weights for the sites that hold no slot."""
        return dict(draw.weights(names))

    def place(
        self,
        shell: Shell,
        posterior: Posterior,
        plan: Plan,
        folds: Sequence[Any] | None = None,
        watch: Watch | None = None,
        turn: int = 0,
    ) -> list[Draw]:
        """Fill the shell for one pass, the ``turn``-th of this draw."""
        return place(shell, posterior, self, plan, Ambient(), folds, watch)

    def nll(self, likelihood: Likelihood, outputs: Tensor, y: Tensor) -> Tensor:
        """-log p(y given outputs) of each example ``(B,)``, or their sum."""
        return -likelihood.log_prob(outputs, y)

    def kl(self, draw: Draw, family: Family, prior: FamilyPrior, sampled: bool) -> Tensor:
        """KL of one family: closed where known unless ``sampled``, else of the very weights this
        pass has drawn.
        """
        if sampled and family.atoms is None:
            return sampled_kl(family, prior, Ambient(), draw.drawn).mean()
        return kl(family, prior, Ambient(), draw.drawn)

    def combine(
        self, passes: Sequence[Pass], state: nn.Module | None, size: int
    ) -> tuple[Tensor, Tensor]:
        """(nll, KL) of several passes over one batch of ``size`` examples: their mean."""
        if len(passes) == 1:
            return passes[0].nll, passes[0].kl
        return torch.stack([p.nll for p in passes]).mean(), torch.stack(
            [p.kl for p in passes]
        ).mean()
