"""A prior over whole groups of weights: p(w given z) = N(0, z^2) with one z for a group, and a
density of z that the posterior family holds.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from credo.core.errors import CredoError


class GroupPrior(Distribution):
    """Stands for such a prior where elementwise ones are listed.

    Weights of a group depend on each other, so single ones have no density here.

    Only a family that carries the same groups knows its KL: :class:`credo.posteriors.GroupScale`.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}
    support = constraints.real  # type: ignore[assignment]

    def __init__(self, label: str, proper: bool) -> None:
        self.label, self.proper = label, proper
        super().__init__(validate_args=False)  # there is nothing to validate

    def log_prob(self, value: Tensor) -> Tensor:
        """Single weights have no density: always an error."""
        raise CredoError(
            f"The {self.label} prior is over groups of weights, not over single ones; it has no "
            "elementwise density."
        )

    def sample(self, sample_shape: torch.Size = torch.Size()) -> Tensor:  # noqa: B008
        """Single weights cannot be drawn: always an error."""
        raise CredoError(
            f"The {self.label} prior is over groups of weights and is not drawn weight by weight; "
            "source='prior' needs an elementwise prior."
        )

    def __repr__(self) -> str:
        return f"GroupPrior({self.label})"
