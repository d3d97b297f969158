"""exp(x) E_n(x) for x > 0, with E_n(x) = integral over t >= 1 of exp(-x t) / t^n: the horseshoe's
density is made of E_1.

E_1 underflows at x = 88 in single precision and exp(x) overflows there, while their product falls
only as 1/x. Up to x = 1 the power series E_1(x) = -gamma - log x - sum_k (-x)^k / (k k!) is used,
with n E_{n+1} = exp(-x) - x E_n from there on; beyond, the continued fraction of exp(x) E_n(x). The
derivative d/dx[exp(x) E_1(x)] = exp(x) E_1(x) - 1/x is taken as -exp(x) E_2(x) / x, which is no
difference of nearly equal numbers. The number of terms is set by the dtype, so nothing waits for
the device.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

_EULER = 0.57721566490153286061


def scaled_exp1(x: Tensor) -> Tensor:
    """exp(x) E_1(x), elementwise, for x > 0; x = 0 gives infinity, below it NaN."""
    return _Scaled.apply(x, 1)


def log_scaled_exp1(x: Tensor) -> Tensor:
    """log(exp(x) E_1(x)), whose derivative -(E_2 / E_1) / x neither under- nor overflows where x
    does not.
    """
    return _LogScaled.apply(x)[0]


def _scaled(x: Tensor, n: int) -> Tensor:
    """exp(x) E_n(x)."""
    below_one, above_one = x.clamp(max=1.0), x.clamp(min=1.0)
    near = below_one.exp() * _series(below_one)
    for k in range(1, n):
        near = (1.0 - below_one * near) / k
    # 1/x - E_2/x is E_1 without the slower convergence of its own fraction
    far = (1.0 - _fraction(above_one, 2)) / above_one if n == 1 else _fraction(above_one, n)
    return torch.where(x < 1.0, near, far)


def _series(x: Tensor) -> Tensor:
    """E_1(x) for 0 < x <= 1. The first term left out is below 1 / (n n!)."""
    terms = next(
        n for n in range(1, 100) if 1.0 / (n * math.factorial(n)) < torch.finfo(x.dtype).eps / 10
    )
    tail = torch.zeros_like(x)
    for k in range(terms, 0, -1):  # Horner, so that the smallest terms are added first
        tail = tail * x - (-1.0) ** k / (k * math.factorial(k))
    return tail * x - _EULER - x.log()


def _fraction(x: Tensor, n: int) -> Tensor:
    """exp(x) E_n(x) for x >= 1 by 1/(x+n - 1*n/(x+n+2 - 2(n+1)/(x+n+4 - ...))); its error falls as
    exp(-4 sqrt(terms x)).
    """
    depth = math.ceil((math.log(10.0 / torch.finfo(x.dtype).eps) / 4.0) ** 2)
    below = x + (n + 2.0 * depth)
    for k in range(depth, 0, -1):
        below = x + (n + 2.0 * (k - 1)) - k * (k + n - 1.0) / below
    return below.reciprocal()


class _Scaled(torch.autograd.Function):
    """exp(x) E_n(x), differentiable as often as asked: -(n E_{n+1} - (n-1) E_n) / x, scaled
    alike.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, n: int) -> Tensor:
        return _scaled(x, n)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.n = inputs[1]

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        (x,) = ctx.saved_tensors
        above = ctx.n * _Scaled.apply(x, ctx.n + 1)
        own = (ctx.n - 1) * _Scaled.apply(x, ctx.n) if ctx.n > 1 else 0.0
        return -grad_outputs[0] * (above - own) / x, None


class _LogScaled(torch.autograd.Function):
    """log(exp(x) E_1(x)) and its slope, both from the one evaluation that training pays for."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        second = _scaled(x, 2)
        # x E_1 = 1 - E_2 loses its digits for small x, where E_1 comes from the series anyway
        first = torch.where(
            x < 1.0, x.clamp(max=1.0).exp() * _series(x.clamp(max=1.0)), (1.0 - second) / x
        )
        return first.log(), -(second / first) / x

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(inputs[0], output[1])

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        x, slope = ctx.saved_tensors
        if (
            torch.is_grad_enabled()
        ):  # a second derivative may be asked for, which the stored slope does not have
            slope = -(_Scaled.apply(x, 2) / _Scaled.apply(x, 1)) / x
        return grad_outputs[0] * slope
