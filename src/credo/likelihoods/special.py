"""Special functions that torch lacks."""

from __future__ import annotations

import torch
from torch import Tensor

ITERATIONS = 200  # the fraction needs about sqrt(max(a, b)) terms


def _fraction(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    """The continued fraction of the incomplete beta function by Lentz's recurrence; fast for x <
    (a+1)/(a+b+2).
    """
    tiny = torch.finfo(x.dtype).tiny ** 0.5

    def away_from_zero(t: Tensor) -> Tensor:
        return torch.where(t.abs() < tiny, tiny, t)

    c = torch.ones_like(x)
    d = 1.0 / away_from_zero(1.0 - (a + b) * x / (a + 1.0))
    value = d
    for m in range(1, ITERATIONS + 1):
        even = m * (b - m) * x / ((a + 2 * m - 1.0) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1.0))
        before = value
        for term in (even, odd):
            d = 1.0 / away_from_zero(1.0 + term * d)
            c = away_from_zero(1.0 + term / c)
            value = value * c * d
        if bool((value - before).abs().le(4.0 * torch.finfo(x.dtype).eps * value.abs()).all()):
            break
    return value


def betainc(a: Tensor, b: Tensor, x: Tensor, complement: Tensor) -> Tensor:
    """The regularised incomplete beta function I_x(a, b) = integral_0^x t^(a-1) (1-t)^(b-1) dt /
    B(a, b), for x in [0, 1].

    ``complement`` is 1 - x, given apart because the difference loses the digits of a small one. Its
    relative error is that of log B(a, b), about 1e-11 for a = 10^4 in float64; for a or b beyond
    some 10^4 200 terms may not be enough.
    """
    a, b, x, complement = torch.broadcast_tensors(a, b, x, complement)
    flip = x > (a + 1.0) / (a + b + 2.0)
    p, q = torch.where(flip, b, a), torch.where(flip, a, b)
    t, rest = torch.where(flip, complement, x), torch.where(flip, x, complement)
    log_beta = torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)
    part = torch.exp(torch.xlogy(p, t) + torch.xlogy(q, rest) - log_beta) / p * _fraction(p, q, t)
    return torch.where(flip, 1.0 - part, part)


def student_t_cdf(x: Tensor, df: Tensor) -> Tensor:
    """P(T <= x) of Student's t: half of I_{df/(df + x^2)}(df/2, 1/2) is the mass beyond |x|.

    Computed in float64.
    """
    nu, square = df.double(), x.double().square()
    tail = 0.5 * betainc(
        nu / 2.0, torch.full_like(nu, 0.5), nu / (nu + square), square / (nu + square)
    )
    return torch.where(x > 0, 1.0 - tail, tail).to(x.dtype)
