"""Rules for elementwise functions: rectifiers exactly, smooth ones by quadrature."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from credo.estimators.moments.gaussian import (
    relu_covariance,
    relu_moments,
    smooth_covariance,
    smooth_moments,
    standardise,
    with_diagonal,
)
from credo.estimators.moments.state import Moments, lift, like, make_moments, refusal, rule, split


def smooth(function: Callable[[Tensor], Tensor], x: Moments) -> Moments:
    """Any smooth elementwise function."""
    if not x.full:
        return like(x, *smooth_moments(function, x.expected, x.var_or_cov))
    mean, cov = smooth_covariance(function, *split(x))
    return like(x, mean.reshape(x.shape), cov)


@rule(
    F.relu,
    torch.relu,
    torch.relu_,
    Tensor.relu,
    Tensor.relu_,
    name="relu",
    diagonal="exact",
    full="exact",
)
def _relu(func: Any, input: Any, inplace: bool = False) -> Moments:
    return _leaky(func, input, 0.0)


@rule(F.leaky_relu, F.leaky_relu_, name="leaky_relu", diagonal="exact", full="exact")
def _leaky(func: Any, input: Any, negative_slope: float = 0.01, inplace: bool = False) -> Moments:
    """a x + (1 - a) max(x, 0), where Cov(x_i, max(x_j, 0)) = c_ij P(x_j > 0) by Stein's lemma."""
    x, a = lift(input, func), negative_slope
    if not x.full:
        mean, var = x.expected, x.var_or_cov
        out, out_var = relu_moments(mean, var)
        if a:
            passing = torch.special.ndtr(standardise(mean, var)[0])
            out, out_var = (
                a * mean + (1 - a) * out,
                (a * a + 2 * a * (1 - a) * passing) * var + (1 - a) ** 2 * out_var,
            )
        return like(x, out, out_var)
    mean, cov = split(x)
    out, out_cov, passing = relu_covariance(mean, cov)
    if a:
        both = passing.unsqueeze(-1) + passing.unsqueeze(-2)
        out, out_cov = (
            a * mean + (1 - a) * out,
            (a * a + a * (1 - a) * both) * cov + (1 - a) ** 2 * out_cov,
        )
    return like(x, out.reshape(x.shape), out_cov)


def _smooth_rule(name: str, function: Callable[..., Tensor], *others: Any) -> None:
    @rule(function, *others, name=name, diagonal="quadrature", full="quadrature")
    def apply(func: Any, input: Any, *args: Any, inplace: bool = False, **kwargs: Any) -> Moments:
        return smooth(lambda values: function(values, *args, **kwargs), lift(input, func))


_smooth_rule("tanh", torch.tanh, Tensor.tanh, Tensor.tanh_, torch.tanh_)
_smooth_rule(
    "sigmoid", torch.sigmoid, Tensor.sigmoid, Tensor.sigmoid_, torch.sigmoid_, torch.special.expit
)
_smooth_rule("gelu", F.gelu)
_smooth_rule("silu", F.silu)
_smooth_rule("mish", F.mish)
_smooth_rule("softplus", F.softplus)
_smooth_rule("elu", F.elu)
_smooth_rule("celu", F.celu)
_smooth_rule("selu", F.selu)
_smooth_rule("logsigmoid", F.logsigmoid)
_smooth_rule("softsign", F.softsign)
_smooth_rule("sin", torch.sin, Tensor.sin)
_smooth_rule("cos", torch.cos, Tensor.cos)


@rule(torch.square, Tensor.square, name="square", diagonal="exact", full="exact")
def _square(func: Any, input: Any) -> Moments:
    """m^2 + v, and 2 c_ij^2 + 4 m_i m_j c_ij."""
    x = lift(input, func)
    if not x.full:
        mean, var = x.expected, x.var_or_cov
        return like(x, mean * mean + var, 2 * var * var + 4 * mean * mean * var)
    mean, cov = split(x)
    product = mean.unsqueeze(-1) * mean.unsqueeze(-2)
    return like(
        x,
        (mean * mean + cov.diagonal(dim1=-2, dim2=-1)).reshape(x.shape),
        cov * (2 * cov + 4 * product),
    )


def _noise(x: Moments, p: float, func: Any, shared: bool) -> Moments:
    """Multiplication by a mask of mean 1 and variance p / (1 - p)."""
    if p >= 1.0:
        raise refusal(func, f"its drop rate is {p:g}", "use a rate below 1")
    rate = p / (1.0 - p)
    if not x.full:
        return like(x, x.expected, x.var_or_cov + rate * (x.var_or_cov + x.expected.square()))
    if shared:
        raise refusal(
            func, "it drops whole channels in training mode", "use the diagonal mode or eval()"
        )
    mean, cov = split(x)
    var = cov.diagonal(dim1=-2, dim2=-1)
    return like(x, x.expected, with_diagonal(cov, var + rate * (var + mean * mean)))


@rule(
    F.dropout,
    torch.dropout,
    torch.dropout_,
    F.dropout1d,
    F.dropout2d,
    F.dropout3d,
    torch.feature_dropout,
    name="dropout",
    diagonal="exact; identity in eval",
    full="exact; identity in eval",
)
def _dropout(
    func: Any, input: Any, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Moments:
    x = lift(input, func)
    shared = func not in (F.dropout, torch.dropout, torch.dropout_)
    return (
        _noise(x, p, func, shared)
        if training and p > 0
        else make_moments(x.expected, x.var_or_cov, x.full, x.sources)
    )
