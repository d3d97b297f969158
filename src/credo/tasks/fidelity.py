"""How faithfully one model's predictions, and the uncertainty in them, repeat another's."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from credo import metrics
from credo.audit.cells import cells
from credo.audit.distances import DISTANCES
from credo.bnn import BNN
from credo.core.errors import CredoError
from credo.core.seeds import mix
from credo.core.settings import positive, renamed, whole
from credo.core.tree import num_rows, split
from credo.data.checks import check_inputs, check_pair
from credo.predictive import Predictive

ROWS = 256  # inputs compared at once
SMALLEST = 1e-30  # probability that logarithms take for 0


@renamed(samples="num_samples", warn=False)
def fidelity(
    teacher: BNN, student: BNN, x: Any, y: Any = None, num_samples: int = 100, seed: int = 0
) -> dict[str, float]:
    """Predictions of ``student`` compared with those of ``teacher`` at ``x``, and both with targets
    ``y`` if there are any.

    - ``agreement`` (labels): share of inputs with the same predicted label.
    - ``total_variation``: between the predictive distributions of y, mean over inputs, from 0 to 1
      (several targets: one at a time).
    - ``kl``: KL(teacher, student) in nats, mean over inputs: what coding the teacher's y with the
      student's predictions costs. Exact for labels (several: one at a time) and for a point student
      with normal noise and one target; elsewhere y is drawn with a fixed seed, and chance may make
      it slightly negative.
    - ``total_teacher``, ``total_student``: mean total uncertainty, in nats for discrete y, else
      variances.
    - ``rank_correlation``: Spearman's, of total uncertainty over inputs (several targets: their
      mean): whether both are uncertain at the same inputs. NaN where either is the same everywhere.
    - with ``y``: ``nll_teacher`` and ``nll_student`` in nats per datum, and ``error_...`` (share of
      wrong labels) or ``rmse_...``.

    ``num_samples``: draws of a posterior that is no point. Both must have likelihoods of the same
    kind, and as many targets.
    """
    positive("num_samples", num_samples, 100)
    whole("seed", seed)
    x, targets = (check_inputs(x), None) if y is None else check_pair(x, y)
    sums: dict[str, float] = {}
    uncertainties: list[tuple[Tensor, Tensor]] = []
    measures, start = MEASURES[teacher.model.likelihood.metric_family], 0
    for rows in split(x, ROWS):
        count = num_rows(rows)
        one, other = (_predict(bnn, rows, num_samples, seed) for bnn in (teacher, student))
        other = other.to(one.outputs.device)
        _check_same(one, other)
        row = _distances(one, other) | {"kl": measures.divergence(one, other, mix(seed, start))}
        if targets is not None:
            part = targets[start : start + count]
            row |= {
                f"{name}_{who}": v
                for who, p in _named(one, other)
                for name, v in measures.scores(p, part).items()
            }
        for key, value in row.items():
            sums[key] = sums.get(key, 0.0) + value * count
        uncertainties.append((one.total.reshape(count, -1), other.total.reshape(count, -1)))
        start += count
    first, second = (torch.cat(parts) for parts in zip(*uncertainties, strict=True))
    means = {key: value / start for key, value in sums.items()}
    ranks = [rank_correlation(a, b) for a, b in zip(first.unbind(1), second.unbind(1), strict=True)]
    found = {
        "total_teacher": float(first.mean()),
        "total_student": float(second.mean()),
        "rank_correlation": sum(ranks) / len(ranks),
    }
    return {key: measures.finish(key, value) for key, value in (means | found).items()}


def rank_correlation(a: Tensor, b: Tensor) -> float:
    """Spearman's rank correlation of two series ``(N,)``; ties share the mean of their ranks.

    NaN where one does not vary.
    """
    first, second = (_ranks(v) - (len(v) - 1) / 2 for v in (a, b))
    size = float((first.square().sum() * second.square().sum()).sqrt())
    return float((first * second).sum()) / size if size > 0 else math.nan


def _ranks(values: Tensor) -> Tensor:
    _, place, counts = torch.unique(values, sorted=True, return_inverse=True, return_counts=True)
    ends = counts.cumsum(0).double()
    return (ends - (counts + 1) / 2)[place]


def _named(
    one: Predictive, other: Predictive
) -> tuple[tuple[str, Predictive], tuple[str, Predictive]]:
    return ("teacher", one), ("student", other)


def _predict(bnn: BNN, x: Any, samples: int, seed: int) -> Predictive:
    p = bnn.predict(x, samples, seed)
    return Predictive(p.outputs.double(), p.likelihood)


def _check_same(one: Predictive, other: Predictive) -> None:
    kinds = [
        (p.likelihood.metric_family, p.likelihood.discrete, p.mean.shape[-1]) for p in (one, other)
    ]
    if kinds[0] != kinds[1]:
        texts = [f"{p.likelihood.name} with {p.mean.shape[-1]} column(s)" for p in (one, other)]
        raise CredoError(
            f"Predictions of different kinds: {texts[0]} against {texts[1]}; compare models of "
            "the same targets."
        )


def _distances(one: Predictive, other: Predictive) -> dict[str, float]:
    """Total variation, and the agreement of labels, as the audit measures them."""
    kind = DISTANCES[one.likelihood.metric_family]
    edges = kind.edges(one, other)
    parts = [
        kind.draw_set(p, cells(p.num_samples, 1, p.outputs.device), edges, None).subset()
        for p in (one, other)
    ]
    return kind.specific(parts[1], parts[0])


class _Measures(NamedTuple):
    """Measures that differ between labels and values; ``roots``: names of means of squares, whose
    root is reported.
    """

    divergence: Callable[[Predictive, Predictive, int], float]
    scores: Callable[[Predictive, Tensor], dict[str, float]]
    roots: tuple[str, ...] = ()

    def finish(self, key: str, value: float) -> float:
        """A mean over all inputs as it is reported."""
        return math.sqrt(value) if key.startswith(self.roots) else value


def _tables(p: Predictive) -> Tensor:
    """Mean probabilities ``(M, C)``; several binary labels are so many problems of two classes."""
    return p.likelihood.label_table(p.probs.mean(0), torch.zeros((), device=p.outputs.device))[0]


def _label_divergence(one: Predictive, other: Predictive, seed: int) -> float:
    del seed  # nothing is drawn
    p, q = _tables(one), _tables(other)
    return float((p * (p.clamp_min(SMALLEST).log() - q.clamp_min(SMALLEST).log())).sum(-1).mean())


def _value_divergence(one: Predictive, other: Predictive, seed: int) -> float:
    """-H[teacher] - E log q(y): by the closed forms of the likelihood where the student is a point,
    else over drawn y.
    """
    if other.num_samples == 1:
        soft = other.likelihood.soft_targets(one.outputs, one.likelihood, seed)
        expected = other.likelihood.soft_log_prob(other.outputs[0], soft)
    else:
        y = one.likelihood.sample(one.outputs, seed)
        expected = torch.stack(
            [other.likelihood.mixture_log_prob(other.outputs, draw) for draw in y]
        ).mean(0)
    return float((-one.entropy - expected).mean())


def _label_scores(p: Predictive, y: Tensor) -> dict[str, float]:
    targets = p.likelihood.check_pair(p.outputs, y)
    probs, labels = p.likelihood.label_table(p.mean, targets)
    return {
        "nll": float(metrics.nll(p.log_prob(targets))),
        "error": 1.0 - float(metrics.accuracy(probs, labels)),
    }


def _value_scores(p: Predictive, y: Tensor) -> dict[str, float]:
    targets = p.likelihood.check_pair(p.outputs, y)
    columns = targets.reshape(len(targets), -1).to(p.mean.dtype)
    return {
        "nll": float(metrics.nll(p.log_prob(targets))),
        "rmse": float(metrics.rmse(p.mean, columns)) ** 2,
    }


#: By the likelihood's ``metric_family``.
MEASURES: dict[str, _Measures] = {
    "labels": _Measures(_label_divergence, _label_scores),
    "values": _Measures(_value_divergence, _value_scores, ("rmse",)),
}
