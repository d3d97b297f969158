"""When chains of no given length have run long enough: what they say of a few inputs has mixed.

At fixed numbers of draws that grow by a quarter, the outputs at 20 training inputs (of labels the
log probabilities) are computed under draws evenly spaced along every chain. Chains have converged
when the largest rank-normalised R-hat is below 1.02 and the smallest bulk ESS at least 200; they
end without that when the budget of gradients is spent. Only draws and the count of gradients
decide, so a resumed run decides as one that never stopped. Blind to modes that no chain has seen.
"""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor

from credo.core.errors import CredoError
from credo.core.tree import take
from credo.data.source import Source
from credo.likelihoods.base import Likelihood
from credo.likelihoods.categorical import LabelLikelihood
from credo.methods.sampling.parts.density import Density
from credo.metrics.chain_diagnostics import MIN_DRAWS, ess_bulk, rhat

ROWS = 20  # training inputs that are looked at
R_HAT, ESS = 1.02, 200.0
FIRST, GROWTH = 100, 1.25  # draws of a chain before the first look, and from one to the next
LEAST = 10  # draws of a chain, whatever they cost
MOST = 250  # draws of a chain that a look takes
AT_ONCE = 256  # draws run together


@final
class Mixing:
    """Of the chains of one fit: ``early`` chains may end before all of their draws are made."""

    def __init__(self, density: Density, source: Source, budget: float, early: bool = True) -> None:
        self.density, self.budget, self.early = density, budget, early
        self.inputs = density.model.move(spread_inputs(source, ROWS))

    def end(self, draws: Tensor, spent: float, last: bool) -> dict[str, Any] | None:
        """Why chains end with these draws ``(C, D, P)``, with R-hat and ESS, or None if they go on;
        ``spent``: gradients so far, ``last``: there is room for no more.
        """
        count = draws.shape[1]
        over = last or (self.early and spent >= self.budget and count >= LEAST)
        if not over and not (self.early and count in LOOKS):
            return None
        found = self.measured(draws)
        mixed = found.get("r_hat", R_HAT) < R_HAT and found["ess"] >= ESS
        return found | {"ended": "converged" if mixed else "budget"} if mixed or over else None

    @torch.no_grad()
    def measured(self, draws: Tensor) -> dict[str, float]:
        """The largest R-hat and the smallest bulk ESS of outputs, and of what is predicted with
        them; nothing of too few draws.
        """
        if draws.shape[1] < MIN_DRAWS:
            return {}
        step = -(-draws.shape[1] // MOST)
        shown = draws[:, (draws.shape[1] - 1) % step :: step]
        flat = shown.flatten(0, 1)
        parts = [self.density.outputs(part, self.inputs) for part in flat.split(AT_ONCE)]
        outputs = torch.cat(parts).unflatten(0, shown.shape[:2])
        likelihood = self.density.model.likelihood
        labels = isinstance(likelihood, LabelLikelihood)
        seen = likelihood.probs(outputs).clamp_min(1e-30).log() if labels else outputs
        values = seen.flatten(2).cpu()
        found = {"r_hat": _worst(rhat(values), 1.0), "ess": _worst(ess_bulk(values), -1.0)}
        return found | predicted_mixing(likelihood, outputs)


def predicted_mixing(likelihood: Likelihood, outputs: Tensor) -> dict[str, float]:
    """How far chains agree in y itself, by their network outputs ``(C, D, N, F)``: sqrt(1 + B / W),
    with B the variance between the mean predictions of half chains and W the predictive variance
    within them, noise included; and the number of independent draws of y whose mean is as well
    known. B, W and squared errors are means over inputs. Nothing where y has no moments.
    """
    try:
        mean, noise = (t.double().flatten(2).cpu() for t in likelihood.moments(outputs))
    except (CredoError, NotImplementedError):
        return {}
    half = mean.shape[1] // 2
    parts = torch.cat([mean[:, :half], mean[:, -half:]])
    noises = torch.cat([noise[:, :half], noise[:, -half:]])
    within = (parts.var(1) + noises.mean(1)).mean().clamp_min(1e-30)
    ratio = (1.0 + parts.mean(1).var(0).mean() / within).sqrt()
    doubt = mean.flatten(0, 1).var(0)
    total = doubt + noise.flatten(0, 1).mean(0)
    moves = doubt > 1e-12 * total  # else all draws are one number there
    error = torch.where(moves, doubt / ess_bulk(mean), 0.0).mean()
    count = total.mean() / error.clamp_min(1e-30)
    count = min(float(count), float(noise[..., 0].numel())) if bool(moves.any()) else 0.0
    return {"r_hat_y": float(ratio), "ess_y": count}


def _looks() -> frozenset[int]:
    counts, count = set(), float(FIRST)
    while count < 1e9:
        counts.add(round(count))
        count *= GROWTH
    return frozenset(counts)


#: Numbers of draws after which chains are looked at.
LOOKS = _looks()


def _worst(values: Tensor, sign: float) -> float:
    """Over outputs that move; where none does, chains stand still: infinite R-hat, no ESS."""
    known = values[~values.isnan()]
    if not len(known):
        return float("inf") if sign > 0 else 0.0
    return sign * float((sign * known).max())


def spread_inputs(source: Source, count: int) -> Any:
    """``count`` inputs evenly spaced over the data; the first ones where data come in batches."""
    arrays = source.arrays()
    if arrays is None:
        return source.example(count)
    x, y = arrays
    rows = torch.linspace(0, len(y) - 1, min(count, len(y))).round().long()
    return take(x, rows.to(y.device))
