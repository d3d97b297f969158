"""Distances between the predictions of two sets of draws, for class labels and for real values."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar, final

import torch
from torch import Tensor

from credo import metrics
from credo.audit.cells import Cells, DrawSet, DrawSubset, cell_means
from credo.predictive import Predictive

ELEMENTS = 2**22  # numbers in memory at once
EDGES = 100  # of bins of y, from each of the two predictions
POINTS = 2048  # quantiles of single draws' predictions among which these are picked
LEVEL = 0.9  # of the central interval whose coverage is compared
SMALLEST = 1e-16  # probability that logarithms take for 0
ROUNDING = 1e-12  # deviation, relative to the largest value, that is rounding alone


def wasserstein(a: Tensor, b: Tensor) -> Tensor:
    """W1 = integral of abs(F_a^-1(u) - F_b^-1(u)) du of draws in order, ``(R, S)`` and ``(R, T)``,
    row by row: ``(R,)``, exact.
    """
    n, m = a.shape[-1], b.shape[-1]
    if n == m:
        return (a - b).abs().mean(-1)
    # Both quantile functions are steps; their joint steps end at whole multiples of 1 / (n m).
    ends = torch.cat(
        [torch.arange(1, n + 1, device=a.device) * m, torch.arange(1, m + 1, device=a.device) * n]
    ).unique()
    width = ends.diff(prepend=ends.new_zeros(1)).to(a.dtype) / (n * m)
    left, right = (ends - 1) // m, (ends - 1) // n
    rows = max(1, ELEMENTS // len(ends))
    pairs = zip(a.split(rows), b.split(rows), strict=True)
    return torch.cat([(p[:, left] - q[:, right]).abs() @ width for p, q in pairs])


class Distances(ABC):
    """Distances for likelihoods of one ``metric_family`` (abstract)."""

    @abstractmethod
    def draw_set(
        self, p: Predictive, cells: Cells, edges: Tensor | None, y: Tensor | None
    ) -> DrawSet:
        """The draws of one prediction; ``y``: checked targets, if any."""

    @abstractmethod
    def edges(self, first: Predictive, second: Predictive) -> Tensor | None:
        """Where y is cut into bins, if it has to be."""

    @abstractmethod
    def specific(self, p: DrawSubset, q: DrawSubset) -> dict[str, float]:
        """Distances that only this kind of prediction has."""

    def distances(self, p: DrawSubset, q: DrawSubset) -> dict[str, float]:
        """All distances of the draws ``p`` from the draws ``q``."""
        out = self.specific(p, q)
        var = q.moments(q.whole.compared)[1]
        moved = wasserstein(p.sorted(), q.sorted()).reshape(var.shape)
        out["wasserstein"] = float(_in_units(moved.mean(0), var.sqrt().mean(0)).mean())
        out["sd_ratio"] = _ratio(p, q)
        (ours, _), (theirs, variance) = p.moments(p.whole.means), q.moments(q.whole.means)
        out["mean_shift"] = float(
            _in_units((ours - theirs).square().mean(0), variance.mean(0)).mean().sqrt()
        )
        if "log_prob" in p.whole.scores:
            out["nll_difference"] = float((q.log_prob() - p.log_prob()).mean())
            out["calibration_difference"] = self.calibration(p) - self.calibration(q)
        return out

    @abstractmethod
    def calibration(self, p: DrawSubset) -> float:
        """A number that shows calibration, such as the share of targets in an interval."""


def _in_units(value: Tensor, unit: Tensor) -> Tensor:
    """Columns in units of the reference's, without those in which the reference does not vary;
    infinite if it varies in none.
    """
    known = unit > 0
    return value[known] / unit[known] if bool(known.any()) else torch.full_like(value[:1], math.inf)


def _ratio(p: DrawSubset, q: DrawSubset) -> float:
    """Geometric mean of the ratio of deviations over all scalars that vary in the reference; 0 for
    a point.
    """
    ours, (centre, theirs) = p.moments(p.whole.functions)[1], q.moments(q.whole.functions)
    varied = theirs.sqrt() > ROUNDING * centre.abs().max()
    if not bool(varied.any()):
        return math.inf
    return float((0.5 * (ours[varied].log() - theirs[varied].log())).mean().exp())


@final
class LabelDistances(Distances):
    """Class probabilities; several binary labels count as so many problems of two classes."""

    def edges(self, first: Predictive, second: Predictive) -> Tensor | None:
        return None

    def draw_set(
        self, p: Predictive, cells: Cells, edges: Tensor | None, y: Tensor | None
    ) -> DrawSet:
        """Probabilities of every draw, ``(S, R, C)``."""
        probs, blank = p.probs, torch.zeros((), device=p.outputs.device)
        table = p.likelihood.label_table(probs, blank)[0]
        table = table.reshape(len(probs), -1, table.shape[-1])
        logs = table.clamp_min(SMALLEST).log()
        compared = table.reshape(len(probs), -1, 1)
        scores = {}
        if y is not None:
            labels = p.likelihood.label_table(probs.mean(0), y)[1]
            scores = {
                "log_prob": _log_means(p.likelihood.log_prob(p.outputs, y), cells),
                "labels": labels,
            }
        # Logarithms, because deviations of probabilities near 0 say how near they are; centred,
        # because a shift of all changes nothing.
        return DrawSet(
            cells,
            logs - logs.mean(-1, keepdim=True),
            compared,
            compared,
            cell_means(table, cells.of_draw),
            scores,
        )

    def specific(self, p: DrawSubset, q: DrawSubset) -> dict[str, float]:
        """Agreement of labels, and 1/2 sum_c abs(p_c - q_c) of the mean probabilities."""
        ours, theirs = p.average(p.whole.table), q.average(q.whole.table)
        same = (ours.argmax(-1) == theirs.argmax(-1)).to(ours.dtype)
        return {
            "agreement": float(same.mean()),
            "total_variation": float((ours - theirs).abs().sum(-1).mean()) / 2.0,
        }

    def calibration(self, p: DrawSubset) -> float:
        """Expected calibration error."""
        return float(metrics.ece(p.average(p.whole.table), p.whole.scores["labels"]))


@final
class ValueDistances(Distances):
    """Real numbers and counts: probabilities of bins of y, dimension by dimension."""

    tail: ClassVar[float] = (1.0 - LEVEL) / 2.0

    def edges(self, first: Predictive, second: Predictive) -> Tensor:
        """Quantiles of both predictive distributions, nearly: ``(E, N, D)`` in order."""
        return torch.cat([_quantiles(first), _quantiles(second)]).sort(0).values

    def draw_set(
        self, p: Predictive, cells: Cells, edges: Tensor | None, y: Tensor | None
    ) -> DrawSet:
        """Outputs of every draw, means of y given them, and probabilities of the bins between
        ``edges``.
        """
        assert edges is not None
        below = _cdf(p, edges, cells)
        none, all_of_it = torch.zeros_like(below[:, :1]), torch.ones_like(below[:, :1])
        table = torch.cat([none, below, all_of_it], 1).diff(dim=1)
        scores = {}
        if y is not None:
            columns = y.reshape(1, len(y), -1).to(p.outputs.dtype)
            under = columns - 1.0 if p.likelihood.discrete else columns
            scores = {"log_prob": _log_means(p.likelihood.log_prob(p.outputs, y), cells)}
            scores["cdf"] = _cdf(p, torch.cat([columns, under]), cells)
        return DrawSet(
            cells, p.outputs, p.outputs, p.likelihood.moments(p.outputs)[0], table, scores
        )

    def specific(self, p: DrawSubset, q: DrawSubset) -> dict[str, float]:
        """1/2 sum_b abs(p_b - q_b) over bins: a lower bound of 1/2 integral abs(p - q), short only
        where densities cross inside a bin.
        """
        gap = (p.average(p.whole.table) - q.average(q.whole.table)).abs().sum(0)
        return {"total_variation": float(gap.mean()) / 2.0}

    def calibration(self, p: DrawSubset) -> float:
        """Share of targets in the central 90 % interval: P(Y <= y) >= 5 % and P(Y < y) <= 95 %."""
        cdf, under = p.average(p.whole.scores["cdf"])
        return float(((cdf >= self.tail) & (under <= 1.0 - self.tail)).to(cdf.dtype).mean())


#: By the likelihood's ``metric_family``.
DISTANCES: dict[str, Distances] = {"labels": LabelDistances(), "values": ValueDistances()}


def _log_means(log_prob: Tensor, cells: Cells) -> Tensor:
    """log of the cell means of exp, ``(B, N)``."""
    top = log_prob.amax(0)
    return cell_means((log_prob - top).exp(), cells.of_draw).log() + top


def _cdf(p: Predictive, y: Tensor, cells: Cells) -> Tensor:
    """Cell means of P(Y <= y) at ``y (E, N, D)``: ``(B, E, N, D)``."""
    size = max(1, ELEMENTS // (p.num_samples * y[0].numel()))
    parts = [
        p.likelihood.marginal_cdf(p.outputs, part.unsqueeze(1)).transpose(0, 1)
        for part in y.split(size)
    ]
    return torch.cat([cell_means(part, cells.of_draw) for part in parts], 1)


def _quantiles(p: Predictive) -> Tensor:
    """Quantiles of a prediction, nearly: evenly spaced among points mean + sd z of some draws,
    where z are normal quantiles with another offset for each draw.
    """
    mean, var = p.likelihood.moments(p.outputs)
    few = (
        torch.arange(min(p.num_samples, 64), device=mean.device)
        * p.num_samples
        // min(p.num_samples, 64)
    )
    levels = math.ceil(POINTS / len(few))
    steps = torch.arange(levels, dtype=mean.dtype, device=mean.device).unsqueeze(1)
    offsets = (torch.arange(len(few), dtype=mean.dtype, device=mean.device) + 0.5) / len(few)
    z = torch.special.ndtri((steps + offsets) / levels).reshape(levels, len(few), 1, 1)
    points = (mean[few] + var[few].sqrt() * z).flatten(0, 1).sort(0).values
    return points[torch.linspace(0, len(points) - 1, EDGES, device=mean.device).round().long()]
