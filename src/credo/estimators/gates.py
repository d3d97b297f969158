"""Gradients of drop rates through hard masks: REINFORCE and ARM, which need no relaxation and have
no bias.

The nll of an example answers for the masks of that example, and the nll of the batch for masks that
the whole batch shares. That examples do not depend on each other's masks holds for every network
but those that normalise by batches.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from credo.core.errors import SettingError
from credo.core.linear_map import LinearMap
from credo.core.seeds import Noise, Paired
from credo.core.shell import Shell
from credo.estimators.base import Estimator, Pass, estimators
from credo.estimators.placement import Plan, Watch, place
from credo.estimators.score import Baseline
from credo.posteriors import Draw, Posterior
from credo.posteriors.draw import Gate


class Gated(Estimator):
    """Hard masks, on activations ("local") or on weights; a subclass supplies the gradient of the
    rates.
    """

    intercepts: ClassVar[bool] = True
    for_masks: ClassVar[bool] = True

    def __init__(self, how: str = "local") -> None:
        self.how = how

    def entering(self, how: str) -> Estimator:
        if how not in ("local", "weights"):
            raise SettingError(
                f"gradient={self.name!r} goes with estimator='local' or 'weights', not {how!r}."
            )
        return type(self)(how)

    def check(self, posterior: Posterior) -> None:
        """Only masks with learned rates, and points."""
        for family in posterior.factors:
            if not family.gated and family.atoms != 1:
                raise SettingError(
                    f"estimator={self.name!r} is for masks with learned rates, not for the family "
                    f"{family.name!r}."
                )

    def begin(self, draws: Sequence[Draw]) -> None:
        """Ask for hard masks."""
        for draw in draws:
            draw.harden()

    def meet(self, draw: Draw, op: LinearMap, x: Tensor, w: str, b: Any, noise: Noise) -> Tensor:
        """The family's local form, unless masks are to be on weights."""
        return draw.local(op, x, w, b, noise) if self.how == "local" else NotImplemented

    @abstractmethod
    def surrogate(self, passes: Sequence[Pass], state: nn.Module | None, size: int) -> Tensor:
        """A sum whose gradient is that of the summed nll with respect to the rates, through the
        masks alone.
        """

    def combine(
        self, passes: Sequence[Pass], state: nn.Module | None, size: int
    ) -> tuple[Tensor, Tensor]:
        """The means over passes, with the gradient of the rates added."""
        nll, kl = super().combine(passes, state, size)
        extra = self.surrogate(passes, state, size)
        return nll + extra - extra.detach(), kl


class Reinforce(Gated):
    """E[(f - b) grad log q(z)] (Williams 1992); b is the mean of the batch's other examples, for
    shared masks a running average.
    """

    name: ClassVar[str] = "reinforce"
    memory = Baseline

    def surrogate(self, passes: Sequence[Pass], state: nn.Module | None, size: int) -> Tensor:
        """Scores weighted by what is left of the loss."""
        assert isinstance(state, Baseline)
        before = state.read()[0]
        terms = []
        for one in passes:
            f = one.each.detach().reshape(size, -1).sum(1)
            left = f - ((f.sum() - f) / (size - 1) if size > 1 else before.to(f))
            for gate in _gates(one):
                score = _per_example(gate, _log_q(gate))
                terms.append(
                    (left * score).sum()
                    if gate.axis is not None
                    else (f.sum() - before.to(f) * size) * score
                )
        state.update(
            torch.stack([one.nll.detach() for one in passes]).mean() / size, torch.zeros(())
        )
        return torch.stack(terms).sum() / len(passes) if terms else passes[0].nll.detach()


class Arm(Gated):
    """Augment, REINFORCE, merge (Yin and Zhou 2019): E_u[(f(z') - f(z)) (u - 1/2)] with z = [u <
    keep], z' = [1 - u < keep].

    u - 1/2 is replaced by its mean given both masks (Dong, Mnih and Tucker 2020): 0 where they
    agree and (z' - z) max(k, 1 - k) / 2 where they differ, k the keep rate. So units whose masks
    agree add no noise, and no baseline is needed.
    """

    name: ClassVar[str] = "arm"
    passes: ClassVar[int] = 2

    def __init__(self, how: str = "local") -> None:
        super().__init__(how)
        self._first = Paired()

    def place(
        self,
        shell: Shell,
        posterior: Posterior,
        plan: Plan,
        folds: Sequence[Any] | None = None,
        watch: Watch | None = None,
        turn: int = 0,
    ) -> list[Draw]:
        """The second pass sees the mirror image of the first one's noise."""
        if turn == 0:
            self._first = Paired()
        return place(
            shell,
            posterior,
            self,
            plan,
            self._first if turn == 0 else Paired(self._first),
            folds,
            watch,
        )

    def surrogate(self, passes: Sequence[Pass], state: nn.Module | None, size: int) -> Tensor:
        """Differences of opposite passes times the mean of u - 1/2, on the logits of keeping."""
        terms = []
        for one, two in zip(passes[::2], passes[1::2], strict=True):
            f, g = (p.each.detach().reshape(size, -1).sum(1) for p in (one, two))
            for gate in _gates(one):
                score = _per_example(gate, _opposite(gate) * gate.logit)
                terms.append(
                    ((g - f) * score).sum() if gate.axis is not None else (g - f).sum() * score
                )
        return 2 * torch.stack(terms).sum() / len(passes) if terms else passes[0].nll.detach()


def _gates(one: Pass) -> list[Gate]:
    return [gate for draw in one.draws for gate in draw.gates]


def _opposite(gate: Gate) -> Tensor:
    """E[u - 1/2 given z and z']."""
    keep = torch.sigmoid(gate.logit.detach())
    difference = (1 - gate.uniform < keep).to(keep.dtype) - (gate.uniform < keep).to(keep.dtype)
    return difference * torch.maximum(keep, 1 - keep) / 2


def _log_q(gate: Gate) -> Tensor:
    """Log probability of every mask entry."""
    keep = gate.uniform < torch.sigmoid(gate.logit)
    return torch.where(keep, F.logsigmoid(gate.logit), F.logsigmoid(-gate.logit))


def _per_example(gate: Gate, terms: Tensor) -> Tensor:
    """Summed over all axes but the examples' ``(B,)``; over all where masks are shared ``()``."""
    if gate.axis is None:
        return terms.sum()
    return terms.movedim(gate.axis, 0).flatten(1).sum(1)


estimators.register("reinforce")(Reinforce())
estimators.register("arm")(Arm())
