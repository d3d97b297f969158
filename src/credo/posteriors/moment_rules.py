"""Mean and variance of independent elements through random linear maps and factors: what families
of independent weights need where activations carry moments.
"""

from __future__ import annotations

from torch import Tensor

from credo.core.linear_map import LinearMap


def through_weights(
    op: LinearMap,
    mean: Tensor,
    var: Tensor,
    w: Tensor,
    w_var: Tensor,
    b: Tensor | None,
    b_var: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Mean and variance of op(x, W) + B for independent weights of mean ``w`` and variance
    ``w_var``: V[y] = op(var_x, w^2) + op(mean_x^2 + var_x, w_var) + b_var.
    """
    if op.is_embedding:
        return op(mean, w), op(mean, w_var)
    return op(mean, w, b), op(var, w.square(), b_var) + op(mean * mean + var, w_var)


def times_factor(mean: Tensor, var: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of a number times an independent factor z with E[z] = ``first`` and E[z^2]
    = ``second``.
    """
    return mean * first, second * (var + mean.square()) - (mean * first).square()
