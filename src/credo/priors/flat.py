"""The flat prior: density 1 everywhere, which is improper."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from credo.core.errors import CredoError


class Flat(Distribution):
    """log p(w) = 0. A point estimate under it is maximum likelihood; evidences and weight bits are then undefined."""

    arg_constraints: dict[str, constraints.Constraint] = {}
    support = constraints.real  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__(validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        """Zero everywhere."""
        return torch.zeros_like(value)

    def sample(self, sample_shape: torch.Size = torch.Size()) -> Tensor:  # noqa: B008
        """An improper prior has no draws: always an error."""
        raise CredoError(
            "A flat prior is improper and cannot be sampled; give the parameter a proper prior, e.g. Normal(0.0, 1.0)."
        )
