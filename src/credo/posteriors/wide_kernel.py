"""The covariance of an infinitely wide perceptron's function under its prior.

With weights N(0, sigma_w^2 / fan-in) and biases N(0, sigma_b^2) the pre-activations of a layer
become, as the layers before it widen, independent Gaussian processes with covariance

    K_0(x, x') = sigma_w^2 x.x' / D + sigma_b^2,
    K_l(x, x') = sigma_w^2 E[phi(u) phi(v)] + sigma_b^2,    (u, v) ~ N(0, K_(l-1)),

each layer with variances of its own. E[phi(u) phi(v)] has a closed form for the activations below.

Neal 1996, Bayesian learning for neural networks; Lee et al. 2018 and Matthews et al. 2018 for
several layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from credo.core.errors import SettingError, nearest

Numbers = Sequence[float] | Tensor


class Expectation(NamedTuple):
    """What an activation makes of two jointly Gaussian inputs.

    ``product(cov, var1, var2)``: E[phi(u) phi(v)] ``(N1, N2)`` from their covariance ``(N1, N2)``
    and variances ``(N1, 1)`` and ``(1, N2)``. ``square(var)``: E[phi(u)^2], the same at u = v,
    without the rounding of a quotient.
    """

    product: Callable[[Tensor, Tensor, Tensor], Tensor]
    square: Callable[[Tensor], Tensor]


def rectified(cov: Tensor, var1: Tensor, var2: Tensor) -> Tensor:
    """E[max(u, 0) max(v, 0)] = s (sin t + (pi - t) cos t) / 2 pi with s = sqrt(var1 var2), t the
    angle (Cho and Saul 2009).

    Sine and angle come from one cosine: where that is off by e near 1, both are off by sqrt(e), but
    their effects cancel and e remains.
    """
    size = (var1 * var2).sqrt()
    cosine = (cov / size.clamp_min(torch.finfo(cov.dtype).tiny)).clamp(
        -1.0, 1.0
    )  # two zero vectors without a bias have size 0
    sine = ((1.0 - cosine) * (1.0 + cosine)).sqrt()
    angle = torch.atan2(sine, cosine)
    return size * (sine + (math.pi - angle) * cosine) / (2.0 * math.pi)


def erf(cov: Tensor, var1: Tensor, var2: Tensor) -> Tensor:
    """E[erf(u) erf(v)] = 2 / pi arcsin(2 cov / sqrt((1 + 2 var1) (1 + 2 var2))) (Williams 1997)."""
    ratio = 2.0 * cov / ((1.0 + 2.0 * var1) * (1.0 + 2.0 * var2)).sqrt()
    return torch.asin(ratio.clamp(-1.0, 1.0)) * (2.0 / math.pi)


#: Activation -> its expectations. "identity" stands between two linear layers that follow each
#: other.
EXPECTATIONS: dict[str, Expectation] = {
    "relu": Expectation(rectified, lambda var: 0.5 * var),
    "erf": Expectation(
        erf, lambda var: torch.asin(2.0 * var / (1.0 + 2.0 * var)) * (2.0 / math.pi)
    ),
    "identity": Expectation(lambda cov, var1, var2: cov, lambda var: var),
}


def wide_kernel(
    x1: Tensor,
    x2: Tensor,
    weight_variances: Numbers,
    bias_variances: Numbers,
    activations: Sequence[str],
) -> Tensor:
    """Prior covariance ``(N1, N2)`` of one output at inputs ``(N1, D)`` and ``(N2, D)``, in double
    precision.

    ``weight_variances`` (sigma_w^2, a weight's variance times its fan-in) and ``bias_variances``
    (sigma_b^2) have a number for each linear layer, ``activations`` a name for each hidden one, so
    one less.
    """
    weights, biases = layers(weight_variances, bias_variances, activations)
    x1, x2 = x1.double(), x2.double()
    cov = weights[0] * (x1 @ x2.mT) / x1.shape[-1] + biases[0]
    var1, var2 = (_first_variance(x, weights[0], biases[0]) for x in (x1, x2))
    for name, weight, bias in zip(activations, weights[1:], biases[1:], strict=True):
        phi = EXPECTATIONS[name]
        cov = weight * phi.product(cov, var1.unsqueeze(1), var2.unsqueeze(0)) + bias
        var1, var2 = (weight * phi.square(var) + bias for var in (var1, var2))
    return cov


def wide_variance(
    x: Tensor, weight_variances: Numbers, bias_variances: Numbers, activations: Sequence[str]
) -> Tensor:
    """The diagonal ``(N,)`` of ``wide_kernel(x, x, ...)``."""
    weights, biases = layers(weight_variances, bias_variances, activations)
    var = _first_variance(x.double(), weights[0], biases[0])
    for name, weight, bias in zip(activations, weights[1:], biases[1:], strict=True):
        var = weight * EXPECTATIONS[name].square(var) + bias
    return var


def layers(
    weight_variances: Numbers, bias_variances: Numbers, activations: Sequence[str]
) -> tuple[list[float], list[float]]:
    """The numbers as lists, refused where they do not belong together or an activation has no
    closed form.
    """
    weights, biases = (
        v.tolist() if isinstance(v, Tensor) else [float(x) for x in v]
        for v in (weight_variances, bias_variances)
    )
    for name in activations:
        if name not in EXPECTATIONS:
            raise SettingError(
                "The wide limit has no closed form here for the activation "
                f"{name!r}.{nearest(name, EXPECTATIONS)}"
            )
    if not len(weights) == len(biases) == len(activations) + 1:
        raise SettingError(
            f"{len(activations)} activations need {len(activations) + 1} weight and bias "
            f"variances, got {len(weights)} and {len(biases)}."
        )
    return weights, biases


def _first_variance(x: Tensor, weight: float, bias: float) -> Tensor:
    return weight * x.square().sum(-1) / x.shape[-1] + bias
