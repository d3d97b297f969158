"""Targets in [0, 1], such as grey values, from logits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, constraints
from torch.nn.functional import softplus

from credo.core.errors import SettingError
from credo.likelihoods.base import likelihoods
from credo.likelihoods.continuous_likelihood import ContinuousLikelihood
from credo.likelihoods.mixtures import make_generator
from credo.likelihoods.target_checks import unit_targets

# below this |logit| / 2 the series is as exact as float64, and above it the closed forms do not
# cancel badly
SERIES_BELOW = 0.5
# log(sinh(u) / u) = sum_k c_k u^(2k) with c_k = 2^(2k) B_2k / (2k (2k)!), B_2k the Bernoulli
# numbers.
SERIES = (
    *(1 / 6, -1 / 180, 1 / 2835, -1 / 37800, 1 / 467775, -691 / 3831077250, 2 / 127702575),
    *(-3617 / 2605132530000, 43867 / 350813659321125, -174611 / 15313294652906250),
)


TERMS = {torch.float32: 6}  # of the series, which leave less than its rounding


def _piecewise(u: Tensor, derivative: int, closed: Callable[[Tensor], Tensor]) -> Tensor:
    """The derivative-th derivative of the series divided by u^(derivative mod 2) near zero,
    ``closed`` of |u| elsewhere; both are even.

    Each branch sees arguments from its own side only, so that gradients stay finite. Clamps and one
    blend, because a choice element by element costs more than all the rest.
    """
    size = u.abs()
    z = size.clamp(max=SERIES_BELOW).square()
    terms = [
        SERIES[k - 1] * math.perm(2 * k, derivative)
        for k in range(TERMS.get(u.dtype, len(SERIES)), 0, -1)
    ]
    total = terms[0] * z + terms[1]
    for term in terms[2:]:
        total = torch.addcmul(z.new_tensor(term), total, z)  # one pass over memory
    series = total * z if derivative == 0 else total
    return torch.lerp(
        closed(size.clamp(min=SERIES_BELOW)), series, (size < SERIES_BELOW).to(u.dtype)
    )


class _LogSinhc(torch.autograd.Function):
    """With its derivative in closed form: autograd through both branches takes three times as
    long.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(u: Tensor) -> Tensor:  # pyright: ignore
        return _piecewise(u, 0, lambda v: v + torch.log(torch.expm1(-2.0 * v) / (-2.0 * v)))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # pyright: ignore
        return grad * langevin(ctx.saved_tensors[0])


def log_sinhc(u: Tensor) -> Tensor:
    """log(sinh(u) / u), even in u."""
    return _LogSinhc.apply(u)  # pyright: ignore


def langevin(u: Tensor) -> Tensor:
    """coth(u) - 1/u, the derivative of ``log_sinhc``."""
    return u * _piecewise(u, 1, lambda v: (1.0 / torch.tanh(v) - 1.0 / v) / v)


def langevin_slope(u: Tensor) -> Tensor:
    """1/u^2 - 1/sinh(u)^2, the derivative of ``langevin``."""
    return _piecewise(
        u, 2, lambda v: v.pow(-2) - 4.0 * torch.exp(-2.0 * v) / torch.expm1(-2.0 * v).square()
    )


class ContinuousBernoulliLogits(Distribution):
    """p(y) = exp(f y) / Z(f) on [0, 1] with Z(f) = (exp(f) - 1) / f, in the natural parameter f.

    This is C(l) l^y (1 - l)^(1 - y) with l = sigmoid(f). In f nothing special happens near l = 1/2
    but the removable singularity of log(sinh(u)/u) at 0, which is summed as a series; forms in l
    lose all digits of the variance there in float32.
    """

    arg_constraints = {"logits": constraints.real}  # pyright: ignore
    support = constraints.unit_interval  # pyright: ignore  torch declares a property here

    def __init__(self, logits: Tensor, validate_args: bool | None = None) -> None:
        self.logits = logits
        super().__init__(logits.shape, validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Distribution:
        return ContinuousBernoulliLogits(self.logits.expand(batch_shape), validate_args=False)

    @property
    def mean(self) -> Tensor:
        return 0.5 + 0.5 * langevin(0.5 * self.logits)

    @property
    def variance(self) -> Tensor:
        return 0.25 * langevin_slope(0.5 * self.logits)

    def log_prob(self, value: Tensor) -> Tensor:
        return self.logits * (value - 0.5) - log_sinhc(0.5 * self.logits)

    def cdf(self, value: Tensor) -> Tensor:
        """(exp(f y) - 1) / (exp(f) - 1), as y exp(f (y - 1)/2) sinhc(f y / 2) / sinhc(f / 2), which
        never overflows.
        """
        y = value.clamp(0.0, 1.0)
        half = 0.5 * self.logits
        return y * torch.exp(half * (y - 1.0) + log_sinhc(half * y) - log_sinhc(half))

    def icdf(self, value: Tensor) -> Tensor:
        """log(1 + q (exp(f) - 1)) / f; for f > 0 through the mirror image 1 - Y, which has
        parameter -f.
        """
        positive = self.logits > 0
        f = -self.logits.abs()
        q = torch.where(positive, 1.0 - value, value)
        flat = f > -1e-6
        safe = torch.where(flat, -1.0, f)
        y = torch.where(
            flat, q + 0.5 * f * q * (1.0 - q), torch.log1p(q * torch.expm1(safe)) / safe
        ).clamp(0.0, 1.0)
        return torch.where(positive, 1.0 - y, y)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self.icdf(
            torch.rand(
                self._extended_shape(torch.Size(sample_shape)),
                dtype=self.logits.dtype,
                device=self.logits.device,
            )
        )

    def entropy(self) -> Tensor:
        """log Z - f E[y], with the part linear in f cancelled by hand."""
        half = 0.5 * self.logits
        return log_sinhc(half) - half * langevin(half)


def log_normalizer(logits: Tensor) -> Tensor:
    """log C(l), l = sigmoid(f): log|2 atanh(1 - 2 l)| - log|1 - 2 l|, which is log 2 + 4/3 (l -
    1/2)^2 + ... near l = 1/2.
    """
    half = logits.abs() / 2.0
    return half + softplus(-2.0 * half) - log_sinhc(half)


@likelihoods.register("continuous_bernoulli")
class ContinuousBernoulli(ContinuousLikelihood):
    """p(y_d given f) = f_d exp(f_d y_d) / (exp(f_d) - 1) on [0, 1]: the normalised form of a
    Bernoulli likelihood on grey values.

    Its mean is not sigmoid(f). Targets outside [0, 1] are refused. Rarely a good fit to targets
    with an interior mode. At targets that are exactly 0 or 1 the density grows without bound as f
    does, and a model of images with an empty background can spend all its effort there: ``limit``
    bounds the parameter softly, f -> limit tanh(f / limit), and with it the density at the ends
    (about ``limit``).
    """

    name: ClassVar[str] = "continuous_bernoulli"
    support: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def __init__(self, limit: float | None = None) -> None:
        if limit is not None and (
            isinstance(limit, bool)
            or not isinstance(limit, (int, float))
            or not 0 < limit < math.inf
        ):
            raise SettingError(
                f"ContinuousBernoulli: limit={limit!r} is not valid; expected a number above 0, "
                "such as 16, or None."
            )
        super().__init__(limit=limit)
        self.limit = limit

    def forward(self, outputs: Tensor) -> Distribution:
        """Independent continuous Bernoullis: batch shape ``(..., N)``, event shape ``(D,)``."""
        return Independent(self.marginals(outputs), 1, validate_args=False)

    def check_targets(self, y: Any) -> Tensor:
        """Floats in [0, 1], ``(N, D)``."""
        return unit_targets(y, self.name)

    def marginals(self, outputs: Tensor) -> ContinuousBernoulliLogits:
        """``ContinuousBernoulliLogits`` with batch shape ``(..., N, D)``."""
        f = outputs if self.limit is None else self.limit * torch.tanh(outputs / self.limit)
        return ContinuousBernoulliLogits(f, validate_args=False)

    def information(self, outputs: Tensor) -> Tensor:
        """The variance of y on the diagonal, since f is the natural parameter, times the squared
        slope of a ``limit``.
        """
        variance = self.marginals(outputs).variance
        slope = 1.0 if self.limit is None else 1.0 - torch.tanh(outputs / self.limit).square()
        return torch.diag_embed(variance * slope**2)

    def entropy(self, outputs: Tensor) -> Tensor:
        """sum_d log Z(f_d) - f_d E[y_d], ``(..., N)``; at most 0, the entropy of the uniform
        law.
        """
        return self(outputs).entropy()

    def sample(self, outputs: Tensor, generator: torch.Generator | int = 0) -> Tensor:
        """Draws ``(..., N, D)`` by the inverse cdf."""
        uniform = torch.empty_like(outputs).uniform_(generator=make_generator(outputs, generator))
        return self.marginals(outputs).icdf(uniform)
