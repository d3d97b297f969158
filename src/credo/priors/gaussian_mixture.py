"""Mixtures of normals over one weight: Blundell's two scales, spike and slab, and the form that
learned mixtures take.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal, constraints

from credo.core.errors import SettingError
from credo.core.settings import positive
from credo.priors.base import Stored, stored

_VECTOR = constraints.independent(constraints.real, 1)
_POSITIVE_VECTOR = constraints.independent(constraints.positive, 1)


class GaussianMixture(Distribution):
    """p(w) = sum_k softmax(logits)_k N(w; loc_k, scale_k^2), with ``logits``, ``loc`` and ``scale``
    of shape (K,).

    The log density is a logsumexp over components, finite however far they lie apart. There is no
    closed-form KL from a normal: credo samples it.
    """

    arg_constraints = {"logits": _VECTOR, "loc": _VECTOR, "scale": _POSITIVE_VECTOR}  # type: ignore
    support = constraints.real  # type: ignore[assignment]

    def __init__(
        self, logits: Any, loc: Any, scale: Any, validate_args: bool | None = None
    ) -> None:
        values = [
            torch.as_tensor(v, dtype=None if isinstance(v, Tensor) else torch.get_default_dtype())
            for v in (logits, loc, scale)
        ]
        shapes = [tuple(v.shape) for v in values]
        if (
            shapes[0] != shapes[1]
            or shapes[1] != shapes[2]
            or len(shapes[0]) != 1
            or not shapes[0][0]
        ):
            raise SettingError(
                f"GaussianMixture: logits, loc and scale have shapes {shapes}; expected one (K,) "
                "for all three, K >= 1."
            )
        self.logits, self.loc, self.scale = values
        super().__init__(validate_args=validate_args)

    def log_prob(self, value: Tensor) -> Tensor:
        """logsumexp_k [log weight_k + log N(value; loc_k, scale_k^2)], of the shape of
        ``value``.
        """
        if self._validate_args:
            self._validate_sample(value)
        parts = Normal(self.loc, self.scale, validate_args=False).log_prob(value.unsqueeze(-1))
        return torch.logsumexp(self.logits.log_softmax(-1) + parts, -1)

    def sample(self, sample_shape: Any = torch.Size()) -> Tensor:  # noqa: B008
        """A component by its weight, then a draw of it, from torch's global generator."""
        with torch.no_grad():
            shape = torch.Size(sample_shape)
            component = torch.multinomial(
                self.logits.softmax(-1), max(1, shape.numel()), replacement=True
            )
            draws = torch.normal(self.loc[component], self.scale[component])
            return draws[: shape.numel()].reshape(shape)

    @property
    def weights(self) -> Tensor:
        """softmax(logits), (K,)."""
        return self.logits.softmax(-1)

    @property
    def mean(self) -> Tensor:
        """sum_k weight_k loc_k."""
        return (self.weights * self.loc).sum(-1)

    @property
    def variance(self) -> Tensor:
        """sum_k weight_k (scale_k^2 + (loc_k - mean)^2)."""
        return (self.weights * (self.scale**2 + (self.loc - self.mean) ** 2)).sum(-1)

    def __repr__(self) -> str:
        columns = {"weights": self.weights, "loc": self.loc, "scale": self.scale}
        return f"GaussianMixture({', '.join(f'{n}: [{_short(v)}]' for n, v in columns.items())})"


stored.register("GaussianMixture")(Stored(GaussianMixture))


def _short(values: Tensor) -> str:
    return ", ".join(f"{v:.4g}" for v in values.tolist())


def scale_mixture(weight: float = 0.5, std1: float = 1.0, std2: float = 0.0025) -> GaussianMixture:
    """p(w) = weight N(0, std1^2) + (1 - weight) N(0, std2^2), elementwise (Blundell et al.

    2015, eq. 7).

    A wide component keeps what is needed large and a narrow one pulls the rest to zero. It has no
    closed-form KL against a Gaussian posterior: credo samples it.
    """
    if not 0.0 < weight < 1.0:
        raise SettingError(
            f"weight={weight!r} is not valid; expected a number above 0 and below 1, the share of "
            "the first component."
        )
    scales = [positive("std1", std1, 1.0), positive("std2", std2, 1.0)]
    return GaussianMixture([math.log(weight), math.log1p(-weight)], [0.0, 0.0], scales)


def spike_and_slab(
    weight: float = 0.5, spike_var: float = 1e-6, slab_var: float = 1e6
) -> GaussianMixture:
    """p(w) = weight N(0, spike_var) + (1 - weight) N(0, slab_var): ``weight`` is the share of
    weights expected to be zero.

    Both are **variances**. A weight under the spike (|w| < about 0.005 at the defaults) has almost
    no gradient towards the slab and the reverse, so a sampled KL settles early; a spike at exactly
    zero needs a posterior with gates, not a density.
    """
    spike, slab = (
        math.sqrt(positive(n, v, 1.0))
        for n, v in (("spike_var", spike_var), ("slab_var", slab_var))
    )
    return scale_mixture(weight, spike, slab)
