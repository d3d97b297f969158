"""Rules for linear maps: random weights are met by their family, known ones by the map with squared
weights.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from credo.core.linear_map import SIGNATURES, LinearMap, along, bind
from credo.estimators.moments.state import (
    Moments,
    RandomWeight,
    make_moments,
    refusal,
    rule,
    with_covariance,
)
from credo.posteriors.covariance_rules import check_units, fixed_joint, independent_channels


@rule(
    *SIGNATURES,
    name="linear, conv, conv_transpose, embedding",
    diagonal="exact; positions independent",
    full="exact",
)
def _linear_map(func: Any, *args: Any, **kwargs: Any) -> Moments:
    """E and (co)variance of op(x, w) + b for random or known x, w and b."""
    op, x, w, b = bind(func, args, kwargs)
    if isinstance(x, RandomWeight) or isinstance(w, Moments) or isinstance(b, Moments):
        raise refusal(
            func, "a random input stands where a weight belongs, or a weight where an input belongs"
        )
    if isinstance(x, Moments) and op.is_embedding:
        raise refusal(func, "its indices are random")
    full = (
        x.full
        if isinstance(x, Moments)
        else any(isinstance(v, RandomWeight) and v.full for v in (w, b))
    )
    sources = x.sources if isinstance(x, Moments) else frozenset()
    names = frozenset(v.site for v in (w, b) if isinstance(v, RandomWeight))
    again = sorted(sources & names)
    if again:
        raise refusal(
            func,
            f"{', '.join(again)} is used a second time, and uses of one weight are not independent",
        )
    mean = x.expected if isinstance(x, Moments) else x
    var_or_cov = x.var_or_cov if isinstance(x, Moments) else None
    if full:
        return with_covariance(*_full(op, func, mean, var_or_cov, w, b), sources | names)
    return make_moments(*_diagonal(op, mean, var_or_cov, w, b), False, sources | names)


def _own_bias(w: RandomWeight, b: Any) -> str | None:
    return b.site if isinstance(b, RandomWeight) and b.family is w.family else None


def _diagonal(
    op: LinearMap, mean: Tensor, var: Tensor | None, w: Any, b: Any
) -> tuple[Tensor, Tensor]:
    if isinstance(w, RandomWeight):
        own = _own_bias(w, b)
        zero = torch.zeros_like(mean) if var is None else var
        out, out_var = w.family.moments(op, mean, zero, w.site, own)
        b = None if own else b
    else:
        out = op(mean, w)
        out_var = torch.zeros_like(out) if var is None else op(var, w * w)
    if b is None:
        return out, out_var
    b_mean, b_var = b.marginals() if isinstance(b, RandomWeight) else (b, None)
    out = out + along(b_mean, op.channel_axis, out.dim())
    return out, out_var if b_var is None else out_var + along(b_var, op.channel_axis, out.dim())


def _full(
    op: LinearMap, func: Any, mean: Tensor, cov: Tensor | None, w: Any, b: Any
) -> tuple[Tensor, Tensor]:
    if mean.dim() < 2 or (op.num_spatial and mean.dim() != op.num_spatial + 2):
        raise refusal(
            func,
            f"a covariance needs inputs with an example axis first, got shape {tuple(mean.shape)}",
        )
    if isinstance(w, RandomWeight):
        own = _own_bias(w, b)
        out, out_cov = w.family.joint_moments(op, mean, cov, w.site, own)
        b = None if own else b
    elif cov is None:
        out = op(mean, w)
        check_units(out)
        out_cov = out.new_zeros(len(out), out[0].numel(), out[0].numel())
    else:
        out, out_cov = fixed_joint(op, mean, cov, w, None)
    if b is None:
        return out, out_cov
    b_mean, b_var = b.marginals() if isinstance(b, RandomWeight) else (b, None)
    if b_var is not None:
        positions = out[0].numel() // b_var.numel()
        blocks = b_var.reshape(1, -1, 1, 1).expand(len(out), -1, positions, positions)
        out_cov = out_cov + independent_channels(op, blocks)
    return out + along(b_mean, op.channel_axis, out.dim()), out_cov
