"""Can these importance weights be trusted, and how are they put to use?

Log weights ``(S,)`` need no normalisation; -inf is a weight of zero, NaN and +inf are refused.
Everything is worked out in float64. Vehtari, Simpson, Gelman, Yao and Gabry, "Pareto smoothed
importance sampling", JMLR 25(72), 2024; Zhang and Stephens, "A new and efficient estimation method
for the generalized Pareto distribution", Technometrics 51(3), 2009.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from credo.core.errors import DataError
from credo.metrics.metric_checks import check_count

MIN_TAIL = 5  #: the fewest weights above the threshold that a tail is fitted to
_FLOOR = math.log(
    torch.finfo(torch.float64).tiny
)  # log weights below the largest by more than this count as zero
_PRIOR_COUNT, _PRIOR_K = (
    10.0,
    0.5,
)  # the fitted k is averaged with ten imagined observations of k = 1/2


def pareto_k(log_weights: Tensor) -> float:
    """The shape k of the generalised Pareto tail of the weights ``(S,)``: they have moments below
    order 1/k.

    Good below min(1 - 1/log10(S), 0.7); from there on sums over the weights have errors that S does
    not mend, from 1 on no mean. The tail is the largest M = ceil(min(S/5, 3 sqrt(S))) weights, over
    the next one as threshold.

    k = +inf: fewer than 5 weights stand above the threshold (S < 21, or nearly all weights are zero
    beside the largest few), so nothing is known of the tail and nothing should be trusted. k =
    -inf: the M + 1 largest weights are equal, so there is no tail.
    """
    return _tail(_shifted(log_weights)).k


def smooth(log_weights: Tensor) -> tuple[Tensor, float]:
    """Pareto-smoothed log weights ``(S,)``, normalised so that exp sums to 1, and ``pareto_k``.

    The j-th smallest of M tail weights becomes the quantile (j - 1/2) / M of the fitted tail, at
    most the largest raw weight; order is kept. Where k is infinite the weights are only normalised.
    """
    shifted = _shifted(log_weights)
    tail = _tail(shifted)
    if math.isfinite(tail.k):
        count = len(tail.index)
        upper = torch.log1p(
            -(torch.arange(count, dtype=shifted.dtype, device=shifted.device) + 0.5) / count
        )
        excess = -upper if tail.k == 0.0 else torch.expm1(-tail.k * upper) / tail.k
        shifted[tail.index] = (tail.threshold + torch.log1p(tail.scale * excess)).clamp_max(0.0)
    return shifted - shifted.logsumexp(0), tail.k


def effective(log_weights: Tensor) -> float:
    """Effective number of draws (sum w)^2 / sum w^2, from 1 (one weight has it all) to S (all
    equal).

    It cannot see a region that the proposal missed: read it beside ``pareto_k``.
    """
    shifted = _shifted(log_weights)
    return float((2.0 * shifted.logsumexp(0) - (2.0 * shifted).logsumexp(0)).exp())


def systematic(weights: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Systematic resampling: int64 indices ``(count,)``, in order, into ``weights`` ``(S,)`` of any
    positive sum.

    One uniform u places points (i + u) / count, i = 0 .. count - 1, on the stacked normalised
    weights p. Index s comes up count p_s times in expectation, and never further than one from it;
    a weight of zero never does.
    """
    check_count("count", count)
    if (
        weights.dim() != 1
        or not bool((weights.isfinite() & (weights >= 0)).all())
        or not bool((weights > 0).any())
    ):
        raise DataError(
            f"Got weights of shape {tuple(weights.shape)}; expected a vector of finite numbers "
            "from 0 with one above 0: "
            "pass exp(log_weights - log_weights.max())."
        )
    weights = weights.detach().double()
    heights = (weights / weights.max()).cumsum(0)
    u = torch.rand((), dtype=torch.float64, generator=generator, device=generator.device).to(
        weights.device
    )
    points = (torch.arange(count, dtype=torch.float64, device=weights.device) + u) / count
    index = torch.searchsorted(heights, points * heights[-1], right=True)
    return index.clamp_max(
        int(weights.nonzero().max())
    )  # rounding may lift the last point to the very top


class _Tail(NamedTuple):
    """Weights beyond the threshold, smallest first: excess over the threshold is threshold x GPD(k,
    scale).
    """

    k: float
    scale: float
    threshold: float  # log weight, on the scale where the largest is 0
    index: Tensor


def _shifted(log_weights: Tensor) -> Tensor:
    """A float64 copy whose largest entry is 0."""
    if log_weights.dim() != 1 or len(log_weights) == 0 or log_weights.is_complex():
        raise DataError(
            f"Got log weights of shape {tuple(log_weights.shape)}; expected a vector (S,) with S "
            ">= 1."
        )
    values = log_weights.detach().double()
    largest = values.max()
    if not bool(largest.isfinite()):  # the maximum of anything with a NaN is NaN
        bad = {
            name: int(test.sum())
            for name, test in (("NaN", values.isnan()), ("+inf", values == math.inf))
        }
        raise DataError(
            f"Got {len(values)} log weights, {bad['NaN']} of them NaN and {bad['+inf']} +inf; "
            "expected numbers or -inf, not "
            "all -inf. Find the draws whose target or proposal density could not be computed."
        )
    return values - largest


def _tail(shifted: Tensor) -> _Tail:
    values, order = shifted.sort(stable=True)
    size = math.ceil(min(len(values) / 5.0, 3.0 * math.sqrt(len(values))))
    if size < MIN_TAIL:
        return _Tail(math.inf, math.nan, math.nan, order[:0])
    threshold = values[-size - 1].clamp_min(_FLOOR)
    if float(threshold) == 0.0:
        return _Tail(-math.inf, math.nan, 0.0, order[:0])
    above = values > threshold  # ties with the threshold are not above it
    if int(above.sum()) < MIN_TAIL:
        return _Tail(math.inf, math.nan, float(threshold), order[above])
    # In units of the threshold: k does not depend on the unit, and expm1 keeps what exp(a) - exp(b)
    # would cancel.
    k, scale = _fit(torch.expm1(values[above] - threshold))
    return _Tail(k, scale, float(threshold), order[above])


def _fit(excess: Tensor) -> tuple[float, float]:
    """Shape and scale of a generalised Pareto law from its sorted positive draws ``(n,)``.

    In the ratio r = k / scale the likelihood has k(r) = mean log(1 + r x) at its top and n (log(r /
    k) - k - 1) for a height. The estimate of r is its posterior mean on a grid of prior quantiles,
    which begins at -1 / max(x), where the support ends.
    """
    count = len(excess)
    points = 30 + math.isqrt(count)
    quartile, largest = excess[int(count / 4.0 + 0.5) - 1], excess[-1]
    step = torch.arange(points, dtype=excess.dtype, device=excess.device) + 0.5
    ratio = ((points / step).sqrt() - 1.0) / (3.0 * quartile) - 1.0 / largest
    shape = torch.log1p(ratio.unsqueeze(-1) * excess).mean(-1)
    height = count * ((ratio / shape).log() - shape - 1.0)
    # At r = 0, the exponential law, the height is 0 / 0: one grid point less.
    best = (ratio * height.nan_to_num(nan=-math.inf).softmax(0)).sum()
    k = torch.log1p(best * excess).mean()
    return float((count * k + _PRIOR_COUNT * _PRIOR_K) / (count + _PRIOR_COUNT)), float(k / best)
