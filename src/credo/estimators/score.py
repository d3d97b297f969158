"""The score-function estimator: black-box variational inference, which needs log q and no gradient
of the network.

grad E_q[f] = E_q[(f - b) grad log q] for any b that does not depend on the draw. Returned is a
surrogate with the right value and that gradient. Point estimates and likelihood parameters keep
their ordinary gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from credo.core.errors import SettingError
from credo.core.seeds import Noise
from credo.estimators.base import Estimator, Pass, estimators
from credo.posteriors import Draw, Family, FamilyPrior, Params, Posterior

CONTROLS = ("none", "baseline", "leave_one_out", "auto")


class Baseline(nn.Module):
    """Running averages of nll per example and of KL, as constants to subtract."""

    nll: Tensor
    kl: Tensor
    steps: Tensor

    def __init__(self, decay: float = 0.9) -> None:
        super().__init__()
        self.decay = decay
        for name in ("nll", "kl", "steps"):
            self.register_buffer(name, torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def read(self) -> tuple[Tensor, Tensor]:
        """Both averages, corrected for their start at zero."""
        weight = (1.0 - self.decay**self.steps).clamp_min(1.0 - self.decay)
        return self.nll / weight, self.kl / weight

    @torch.no_grad()
    def update(self, nll: Tensor, kl: Tensor) -> None:
        """One more step; called after the gradient has used the old values, so they stay
        independent of the draw.
        """
        self.steps += 1
        self.nll.lerp_(nll.to(self.nll), 1 - self.decay)
        self.kl.lerp_(kl.to(self.kl), 1 - self.decay)


class Score(Estimator):
    """REINFORCE for weights (Ranganath et al. 2014).

    Works for every family with a density; its variance grows with the weights.

    ``control``: "none"; "baseline", a running average; "leave_one_out", the other draws' mean (two
    draws or more); "auto", the last of these with two draws or more and the baseline with one.
    ``rao_blackwell`` leaves terms out of a weight's gradient whose expectation is zero: the KL
    enters in closed form where known, and otherwise each weight's score meets only its own log q -
    log p instead of the sum over all weights.
    """

    name: ClassVar[str] = "score"

    def __init__(self, control: str = "auto", rao_blackwell: bool = True) -> None:
        self.control, self.rao_blackwell = control, rao_blackwell
        self.memory = Baseline if control in ("baseline", "auto") else None

    def check(self, posterior: Posterior) -> None:
        """Any family that is a point or has a density."""
        for family in posterior.factors:
            if family.atoms is not None and family.atoms != 1:
                raise SettingError(
                    f"estimator='score' needs a density; the family {family.name!r} has none."
                )

    def fill(self, draw: Draw, family: Family, names: Sequence[str], noise: Noise) -> Params:
        """Latents without gradient; the draw remembers them for log q."""
        if family.atoms == 1:
            return draw.weights(names)
        with torch.no_grad():
            draw.drawn = family.latents(noise)
            weights = family.assemble(draw.drawn)
        return {name: weights[name] for name in names}

    def kl(self, draw: Draw, family: Family, prior: FamilyPrior, sampled: bool) -> Tensor:
        """The closed form with its own gradient, or a sampled value whose gradient :meth:`combine`
        supplies.
        """
        if family.atoms == 1:
            return super().kl(draw, family, prior, sampled)
        if self.rao_blackwell and not sampled:
            closed = family.kl(prior)
            if closed is not None:
                return closed
        assert draw.drawn is not None
        each = (
            family.log_prob_each(draw.drawn)
            if self.rao_blackwell and prior.elementwise is not None
            else NotImplemented
        )
        if each is NotImplemented:
            log_q = family.log_prob(draw.drawn)
            pairs = [(log_q, log_q.detach() - family.log_prior(prior, draw.drawn))]
        else:
            log_p = prior.log_prob_each(family.assemble(draw.drawn))
            pairs = [(q, q.detach() - log_p[name]) for name, q in each.items()]
        draw.scored = pairs
        # the entropy part's own gradient, E[grad log q], is zero; what depends on the prior's
        # parameters keeps its gradient
        return torch.stack([term.sum() for _, term in pairs]).sum()

    def combine(
        self, passes: Sequence[Pass], state: nn.Module | None, size: int
    ) -> tuple[Tensor, Tensor]:
        """Values: the means over passes.

        Gradients: the scores weighted by what is left after the control.
        """
        if self.control == "leave_one_out" and len(passes) < 2:
            raise SettingError("control='leave_one_out' needs train_samples of at least 2.")
        if self.control == "auto" and len(passes) > 1:
            state = None  # the other draws say more than the past
        before = state.read() if isinstance(state, Baseline) else None
        nll, kl = super().combine(passes, state, size)
        scores = [self._log_q(p) for p in passes]
        lost = self._left(
            [p.nll.detach() for p in passes], None if before is None else before[0] * size
        )
        nll = nll + _surrogate([weight * score for weight, score in zip(lost, scores, strict=True)])
        pairs = [[pair for draw in p.draws for pair in draw.scored or ()] for p in passes]
        for terms in zip(*pairs, strict=True):
            lost = self._left(
                [term.detach() for _, term in terms],
                None if before is None else before[1] / len(pairs[0]),
            )
            kl = kl + _surrogate(
                [(weight * q).sum() for weight, (q, _) in zip(lost, terms, strict=True)]
            )
        if isinstance(state, Baseline):
            state.update(nll.detach() / size, kl.detach())
        return nll, kl

    def _log_q(self, passed: Pass) -> Tensor:
        terms = [
            d.owner.log_prob(d.drawn)
            for d in passed.draws
            if d.owner.atoms != 1 and d.drawn is not None
        ]
        return torch.stack(terms).sum()

    def _left(self, values: list[Tensor], before: Tensor | None) -> list[Tensor]:
        """Each pass's value minus its control."""
        if before is not None:
            return [value - before.to(value) / value.numel() for value in values]
        if self.control == "none":
            return values
        total = torch.stack(values).sum(0)
        return [value - (total - value) / (len(values) - 1) for value in values]


def _surrogate(terms: list[Tensor]) -> Tensor:
    """Value zero, gradient the mean of the terms'."""
    mean = torch.stack(terms).mean()
    return mean - mean.detach()


estimators.register("score")(Score())
