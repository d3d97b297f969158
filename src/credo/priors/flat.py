"""The flat prior: density 1 everywhere, which is improper."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from credo.core.errors import CredoError
from credo.priors.base import Stored, stored


class Flat(Distribution):
    """log p(w) = 0. A point estimate under it is maximum likelihood; evidences and weight bits are
    then undefined.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}
    support = constraints.real  # type: ignore[assignment]
    proper = False

    def __init__(self) -> None:
        super().__init__(validate_args=False)  # there is nothing to validate

    def log_prob(self, value: Tensor) -> Tensor:
        """Zero everywhere."""
        return torch.zeros_like(value)

    def sample(self, sample_shape: torch.Size = torch.Size()) -> Tensor:  # noqa: B008
        """An improper prior has no draws: always an error."""
        raise CredoError(
            "A flat prior is improper and cannot be sampled; give the parameter a proper prior, "
            "e.g. Normal(0.0, 1.0)."
        )


stored.register("Flat")(Stored(Flat))


def is_proper(distribution: Distribution) -> bool:
    """Whether a density integrates to one.

    KLs and bits under one that does not hold up to a constant; evidences are undefined.
    """
    return bool(getattr(distribution, "proper", True))
