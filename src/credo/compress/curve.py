"""Error against sparsity: what it costs to prune more and more weights, on data that training has
not used.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import nn

from credo.bnn import BNN
from credo.compress.pruned import Pruned, plain, prune
from credo.core.errors import DataError, SettingError
from credo.core.shell import pick
from credo.core.tree import map_leaves
from credo.data.intake import intake
from credo.predictive import Predictive, evaluate

SHARES = (0.0, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999)
THRESHOLDS = (3.0, 2.0, 1.0, 0.0, -1.0, -2.0)


@final
@dataclass(frozen=True)
class Point:
    """A pruned network and its metrics; ``at``: the share or the threshold it was pruned by."""

    at: float
    pruned: Pruned
    metrics: dict[str, float]

    @property
    def error(self) -> float:
        """1 - accuracy, or the nll where outcomes have none."""
        return 1.0 - self.metrics["accuracy"] if "accuracy" in self.metrics else self.metrics["nll"]


@final
@dataclass(frozen=True)
class Curve:
    """Points from dense to sparse."""

    rule: str
    points: tuple[Point, ...]

    def best(self, slack: float = 0.0) -> Pruned:
        """The sparsest network whose error is within ``slack`` of the least."""
        least = min(point.error for point in self.points)
        fine = [point for point in self.points if point.error <= least + slack]
        return min(fine, key=lambda point: point.pruned.nonzero).pruned

    def rows(self) -> list[dict[str, float]]:
        """As a table: what it was pruned by, parameters left, compression from counts, error and
        nll.
        """
        return [
            {
                "at": p.at,
                "nonzero": p.pruned.nonzero,
                "compression": p.pruned.ratio,
                "error": p.error,
                "nll": p.metrics["nll"],
            }
            for p in self.points
        ]

    def figure(self) -> dict[str, Any]:
        """For a report: error against compression."""
        line = {
            "name": f"by {self.rule}" if self.rule != "own" else "by the posterior's own rule",
            "x": [p.pruned.ratio for p in self.points],
            "y": [p.error for p in self.points],
        }
        return {
            "kind": "curves",
            "title": "Error against compression",
            "x_label": "times fewer parameters",
            "y_label": "error",
            "lines": [line],
            "log_x": True,
        }


@torch.no_grad()
def score(net: nn.Module, bnn: BNN, data: Any, batch_size: int = 1000) -> dict[str, float]:
    """Metrics of a plain network under the likelihood of a BNN, the same as ``bnn.evaluate`` gives
    for a posterior.
    """
    parts, targets = [], []
    for x, y in intake(data, dtype=None if bnn.standardised else bnn.dtype)(None, batch_size):
        x, y = map_leaves(lambda t: t.cpu(), (x, y))
        try:
            parts.append(pick(net(x), bnn.output))
        except RuntimeError as error:
            raise DataError(
                f"The network cannot run on these inputs: {str(error).splitlines()[0]}."
            ) from error
        targets.append(y)
    outputs, likelihood = torch.cat(parts).unsqueeze(0), copy.deepcopy(bnn.model.likelihood).cpu()
    _, likelihood = bnn.model.told(outputs, likelihood)
    return evaluate(Predictive(outputs, likelihood), torch.cat(targets))


def curve(bnn: BNN, data: Any, by: str = "auto", at: Sequence[float] | None = None) -> Curve:
    """Prune further and further and score each network on ``data``, which should be validation
    data, since to choose a point of the curve is training too.

    ``at``: thresholds of the posterior's own rule where it prunes by itself (``by="own"``), else
    shares of weights that go.
    """
    own = by == "own" or (
        by == "auto" and any(family.keep_mask() for family in bnn.posterior.factors)
    )
    places = (THRESHOLDS if own else SHARES) if at is None else tuple(at)
    if not places:
        raise SettingError("curve: at= is empty; give at least one threshold or share.")
    points = []
    for place in places:
        pruned = prune(bnn, by, threshold=place) if own else prune(bnn, by, share=place)
        points.append(Point(float(place), pruned, score(pruned.net, bnn, data)))
    return Curve(points[0].pruned.rule, tuple(points))


def dense(bnn: BNN, data: Any) -> dict[str, float]:
    """Metrics of the network at the posterior's means, nothing pruned."""
    return score(plain(bnn), bnn, data)
