"""A whole normal distribution, as the prior of a linear regression."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class ConjugateNormal(NamedTuple):
    """A normal over the flat vector of ``names``, as the prior of a linear regression: mean and
    Cholesky factor of the covariance, in double precision.

    ``noise``: shape and rate of the inverse-gamma of the noise variance, in whose units the
    covariance then is; None where the noise is known.
    """

    names: tuple[str, ...]
    mean: Tensor
    tril: Tensor
    noise: tuple[float, float] | None = None
