"""Rules for sums and products.

Two random operands are taken as independent: a residual branch and its trunk are not.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from credo.core.linear_map import LinearMap
from credo.estimators.moments.state import (
    Moments,
    RandomWeight,
    is_random,
    lift,
    like,
    make_moments,
    refusal,
    rule,
    with_covariance,
)
from credo.posteriors.covariance_rules import sandwich


def _broadcast(func: Any, x: Moments, mean: Tensor) -> Tensor:
    """The variance or covariance of ``x`` in the shape of the result."""
    if x.full:
        if mean.shape != x.shape:
            raise refusal(
                func,
                f"it broadcasts {tuple(x.shape)} to {tuple(mean.shape)}",
                "use the diagonal mode",
            )
        return x.var_or_cov
    return x.var_or_cov.expand(mean.shape)


def _add(func: Any, a: Any, b: Any, sign: float = 1.0) -> Moments:
    """a + sign * b."""
    if a is b:
        return _scale(func, a, 1.0 + sign)
    if not is_random(b):
        x = lift(a, func)
        mean = x.expected + sign * b
        return like(x, mean, _broadcast(func, x, mean))
    if not is_random(a):
        x = lift(b, func)
        mean = a + sign * x.expected
        return like(x, mean, sign * sign * _broadcast(func, x, mean))
    one, two = lift(a, func), lift(b, func)
    mean = one.expected + sign * two.expected
    var_or_cov = _broadcast(func, one, mean) + sign * sign * _broadcast(func, two, mean)
    return make_moments(mean, var_or_cov, one.full, one.sources | two.sources)


def _scale(func: Any, a: Any, factor: Any) -> Moments:
    """``a`` times known numbers."""
    x = lift(a, func)
    mean = x.expected * factor
    if not x.full:
        return like(x, mean, x.var_or_cov * (factor * factor))
    var_or_cov = _broadcast(func, x, mean)
    if isinstance(factor, Tensor) and factor.dim():
        row = factor.expand(mean.shape).flatten(1)
        return like(x, mean, var_or_cov * row.unsqueeze(-1) * row.unsqueeze(-2))
    return like(x, mean, var_or_cov * (factor * factor))


_SUM_RULE = {
    "diagonal": "exact; two random operands as independent",
    "full": "exact; two random operands as independent",
}


@rule(
    torch.add,
    Tensor.add,
    Tensor.add_,
    Tensor.__add__,
    Tensor.__radd__,
    Tensor.__iadd__,
    name="add",
    **_SUM_RULE,
)
def _sum_rule(func: Any, input: Any, other: Any, *, alpha: float = 1.0) -> Moments:
    return _add(func, input, other, alpha)


@rule(
    torch.sub,
    torch.subtract,
    Tensor.sub,
    Tensor.sub_,
    Tensor.subtract,
    Tensor.__sub__,
    Tensor.__isub__,
    name="sub",
    **_SUM_RULE,
)
def _difference(func: Any, input: Any, other: Any, *, alpha: float = 1.0) -> Moments:
    return _add(func, input, other, -alpha)


@rule(Tensor.__rsub__, torch.rsub, name="rsub", **_SUM_RULE)
def _reversed_difference(func: Any, input: Any, other: Any) -> Moments:
    return _add(func, other, input, -1.0)


@rule(torch.neg, Tensor.neg, Tensor.__neg__, name="neg", diagonal="exact", full="exact")
def _negative(func: Any, input: Any) -> Moments:
    return _scale(func, input, -1.0)


@rule(
    torch.mul,
    torch.multiply,
    Tensor.mul,
    Tensor.mul_,
    Tensor.multiply,
    Tensor.__mul__,
    Tensor.__rmul__,
    Tensor.__imul__,
    name="mul",
    diagonal="exact; two random operands must have no weight in common",
    full="by known numbers only",
)
def _product(func: Any, input: Any, other: Any) -> Moments:
    """V[a b] = m_a^2 V_b + m_b^2 V_a + V_a V_b for independent a and b."""
    if (
        isinstance(other, RandomWeight)
        and not isinstance(input, RandomWeight)
        and other.site in other.family.masks
    ):
        return _masked(func, input, other)
    if not is_random(other):
        return _scale(func, input, other)
    if not is_random(input):
        return _scale(func, other, input)
    a, b = lift(input, func), lift(other, func)
    if a.full or b.full:
        raise refusal(func, "both factors are random", "use the diagonal mode")
    common = sorted(a.sources & b.sources)
    if common:
        raise refusal(
            func, f"both factors depend on {', '.join(common[:3])} and are not independent"
        )
    mean = a.expected * b.expected
    var = (
        a.expected.square() * b.var_or_cov
        + b.expected.square() * a.var_or_cov
        + a.var_or_cov * b.var_or_cov
    )
    return make_moments(mean, var, False, a.sources | b.sources)


def _masked(func: Any, input: Any, mask: RandomWeight) -> Moments:
    """The mask of a dropout module, whose family has the rule."""
    if mask.full or (isinstance(input, Moments) and input.full):
        raise refusal(
            func, "a dropout module's mask has no rule for covariances", "use the diagonal mode"
        )
    op = LinearMap(torch.mul, {}, 0, False)
    known = isinstance(input, Moments)
    mean, var = (input.expected, input.var_or_cov) if known else (input, torch.zeros_like(input))
    out, var_or_cov = mask.family.moments(op, mean, var, mask.site, None)
    return make_moments(
        out, var_or_cov, False, (input.sources if known else frozenset()) | {mask.site}
    )


@rule(
    torch.div,
    torch.true_divide,
    Tensor.div,
    Tensor.div_,
    Tensor.true_divide,
    Tensor.__truediv__,
    Tensor.__itruediv__,
    name="div",
    diagonal="exact, by known numbers only",
    full="exact, by known numbers only",
)
def _quotient(func: Any, input: Any, other: Any) -> Moments:
    if is_random(other):
        raise refusal(func, "the divisor is random and its inverse may have no moments")
    return _scale(func, input, 1.0 / other)


@rule(torch.cat, torch.concat, torch.concatenate, name="cat", diagonal="exact", full="refused")
def _concatenate(func: Any, tensors: Any, dim: int = 0) -> Moments:
    return _collect(torch.cat, tensors, dim)


@rule(torch.stack, name="stack", diagonal="exact", full="refused")
def _stack(func: Any, tensors: Any, dim: int = 0) -> Moments:
    return _collect(torch.stack, tensors, dim)


def _collect(func: Any, tensors: Any, dim: int) -> Moments:
    parts = [lift(part, func) for part in tensors]
    if any(isinstance(part, Moments) and part.full for part in parts):
        raise refusal(
            func, "the covariance between its parts is not known", "use the diagonal mode"
        )
    means = [part.expected if isinstance(part, Moments) else part for part in parts]
    second_parts = [
        part.var_or_cov if isinstance(part, Moments) else torch.zeros_like(part) for part in parts
    ]
    sources = frozenset().union(*(part.sources for part in parts if isinstance(part, Moments)))
    return make_moments(func(means, dim), func(second_parts, dim), False, sources)


def linear_function(func: Any, x: Moments, apply: Any, apply_var: Any) -> Moments:
    """A linear function without offset: ``apply`` on the mean and on rows and columns of the
    covariance.
    """
    mean = apply(x.expected)
    if not x.full:
        return make_moments(mean, apply_var(x.var_or_cov), False, x.sources)
    if mean.dim() == 0 or mean.shape[0] != len(x):
        raise refusal(
            func, f"it acts on the example axis of {tuple(x.shape)}", "use the diagonal mode"
        )
    return with_covariance(mean, sandwich(apply, x.var_or_cov, x.shape[1:]), x.sources)


def _axes(dim: Any, ndim: int) -> tuple[int, ...]:
    if dim is None:
        return tuple(range(ndim))
    return tuple(d % ndim for d in ((dim,) if isinstance(dim, int) else dim))


@rule(torch.sum, Tensor.sum, name="sum", diagonal="exact", full="exact")
def _total(func: Any, input: Any, dim: Any = None, keepdim: bool = False) -> Moments:
    return _reduce(func, input, dim, keepdim, False)


@rule(torch.mean, Tensor.mean, name="mean", diagonal="exact", full="exact")
def _average(func: Any, input: Any, dim: Any = None, keepdim: bool = False) -> Moments:
    return _reduce(func, input, dim, keepdim, True)


def _reduce(func: Any, input: Any, dim: Any, keepdim: bool, average: bool) -> Moments:
    x = lift(input, func)
    axes = _axes(dim, x.dim())
    if x.full and 0 in axes:
        raise refusal(
            func, f"it reduces the example axis of {tuple(x.shape)}", "use the diagonal mode"
        )
    share = 1.0
    for axis in axes if average else ():
        share /= x.shape[axis]
    return linear_function(
        func,
        x,
        lambda t: t.sum(axes, keepdim=keepdim) * share,
        lambda t: t.sum(axes, keepdim=keepdim) * share**2,
    )


@rule(F.pad, name="pad", diagonal="exact", full="exact with zeros")
def _pad(
    func: Any, input: Any, pad: Any, mode: str = "constant", value: float | None = None
) -> Moments:
    """Zeros or known numbers around; other modes repeat elements, whose variances are repeated with
    them.
    """
    x = lift(input, func)
    if x.full and (mode != "constant" or value):
        raise refusal(
            func, f"mode={mode!r} with value={value}", "use zero padding or the diagonal mode"
        )
    constant = {} if mode != "constant" else {"value": 0.0}
    if mode == "constant" and value:
        return make_moments(
            F.pad(x.expected, pad, mode, value),
            F.pad(x.var_or_cov, pad, mode, 0.0),
            False,
            x.sources,
        )
    return linear_function(
        func,
        x,
        lambda t: F.pad(t, pad, mode, **constant),
        lambda t: F.pad(t, pad, mode, **constant),
    )


@rule(
    torch.pow,
    Tensor.pow,
    Tensor.__pow__,
    name="pow",
    diagonal="exact, exponent 2 only",
    full="exact, exponent 2 only",
)
def _power(func: Any, input: Any, exponent: Any) -> Moments:
    if isinstance(exponent, (int, float)) and exponent == 2:
        return torch.square(input)  # type: ignore[return-value]
    raise refusal(func, f"the exponent is {exponent!r}", "only squares have a rule")
