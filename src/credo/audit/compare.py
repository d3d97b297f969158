"""How far a posterior's predictions are from the reference's, each distance with its Monte Carlo
error and its ceiling.

Draws of both are divided into cells, contiguous within chains. Every distance is a function of two
unions of cells: all cells give the distance, leaving out one cell at a time its error (jackknife),
and one half of the reference's chains against the other half what chance alone does to draws from
the same posterior.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from credo.audit.cells import DrawSet, cells, jackknife
from credo.audit.distances import DISTANCES, Distances
from credo.bnn import BNN
from credo.core.errors import CredoError
from credo.core.settings import positive, renamed
from credo.predictive import Predictive

DRAWS = 2000  # of a continuous reference

#: Differences that chance makes positive or negative; their ceiling is the mean absolute value.
SIGNED = ("nll_difference", "calibration_difference")


@renamed(samples="num_samples", warn=False)
def compare(
    bnn: BNN, reference: BNN, x: Any, y: Any = None, num_samples: int | None = None, seed: int = 0
) -> dict[str, float]:
    """Distances of ``bnn``'s predictions at ``x`` from ``reference``'s; each ``key`` comes with
    ``key_error`` and ``key_ceiling``.

    - ``agreement`` (labels): share of inputs with the same predicted label.
    - ``total_variation``: of the predictive distributions of y, mean over inputs, between 0 and 1.
    - ``wasserstein``: W1 between the distributions over draws of outputs (labels: probabilities),
      in the reference's mean deviations.
    - ``sd_ratio``: deviation over draws of outputs (labels: centred log probabilities) over the
      reference's, geometric mean.
    - ``mean_shift``: root mean square difference of predictive means, in the reference's deviations
      over draws.
    - with ``y``: ``nll_difference`` in nats per datum, and ``calibration_difference``: of the
      expected calibration error (labels) or of the coverage of the central 90 % interval. Both are
      ``bnn`` minus reference.

    ``_error`` is the standard error from finite draws on both sides, not from finite data; it needs
    chains whose autocorrelation is short against a tenth of all draws. ``_ceiling`` is the same
    distance between halves of the reference's own chains: no method does better except by luck,
    since distances between finite sets of draws are above zero even where the posteriors are the
    same. Of signed differences it is the mean size, and of ``sd_ratio`` exp(mean abs(log ratio)).
    ``num_samples``: draws of a continuous posterior, by default as many as the reference has.
    Memory grows with draws times inputs; some hundred inputs tell as much as many thousand.
    """
    theirs = _predict(reference, x, DRAWS if num_samples is None else num_samples, seed)
    if theirs.num_samples < 4:
        raise CredoError(
            f"The reference holds {theirs.num_samples} draws and cannot be compared with itself; "
            "raise num_draws."
        )
    ours = _predict(bnn, x, positive("num_samples", num_samples, theirs.num_samples), seed).to(
        theirs.outputs.device
    )
    _check_same(ours, theirs)
    kind = DISTANCES[theirs.likelihood.metric_family]
    edges = kind.edges(ours, theirs)
    first, second = (
        kind.draw_set(
            p, cells(p.num_samples, _chains(one), p.outputs.device), edges, _targets(p, y)
        )
        for p, one in ((ours, bnn), (theirs, reference))
    )
    if not second.varies:
        raise CredoError(
            f"All {theirs.num_samples} draws of the reference predict the same at x; there is no "
            "unit to measure in."
        )
    one, other = first.subset(), second.subset()
    value = kind.distances(one, other)
    over_ours = jackknife([kind.distances(part, other) for part in first.without_each()])
    over_theirs = jackknife([kind.distances(one, part) for part in second.without_each()])
    ceiling = _ceiling(kind, second)
    out: dict[str, float] = {}
    for key in value:
        error = math.hypot(over_ours.get(key, 0.0), over_theirs.get(key, 0.0))
        out |= {key: value[key], f"{key}_error": error, f"{key}_ceiling": ceiling[key]}
    return out


def _predict(bnn: BNN, x: Any, samples: int, seed: int) -> Predictive:
    """All atoms of a discrete posterior, ``samples`` draws of any other, in double precision."""
    p = bnn.predict(x, num_samples=bnn.posterior.atoms or samples, seed=seed)
    return Predictive(p.outputs.double(), p.likelihood)


def _targets(p: Predictive, y: Any) -> Tensor | None:
    return None if y is None else p.likelihood.check_pair(p.outputs, y)


def _check_same(ours: Predictive, theirs: Predictive) -> None:
    pairs = [(p.likelihood.name, p.outputs.shape[-1]) for p in (ours, theirs)]
    if pairs[0] != pairs[1]:
        one, other = (f"{name} with {width} outputs" for name, width in pairs)
        raise CredoError(
            f"Different models: {one} against a reference that is {other}; take the reference of "
            "this very model."
        )


def _chains(bnn: BNN) -> int:
    """How many chains lie one after another in the draws; 1 where draws are independent."""
    if bnn.posterior.atoms is None:
        return 1
    return max((family.chains or 1 for family in bnn.posterior.factors), default=1)


def _ceiling(kind: Distances, draws: DrawSet) -> dict[str, float]:
    """Means over halvings; a half that does not vary makes distances in units of its deviations
    infinite.
    """
    rows = [kind.distances(*pair) for pair in draws.halves()]
    found = {key: torch.tensor([row[key] for row in rows], dtype=torch.float64) for key in rows[0]}
    out = {
        key: float((column.abs() if key in SIGNED else column).mean())
        for key, column in found.items()
    }
    return out | {"sd_ratio": float(found["sd_ratio"].log().abs().mean().exp())}
