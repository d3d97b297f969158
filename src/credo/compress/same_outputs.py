"""How far the outputs of a rebuilt network are from those of the original."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


class Difference(NamedTuple):
    """The largest absolute difference of outputs (infinite where shapes differ or numbers are NaN),
    the largest output, and their type.
    """

    worst: float
    largest: float
    dtype: torch.dtype

    def within(self, tolerance: float) -> bool:
        """Whether the difference is at most this share of the largest output, or rounding."""
        share = max(tolerance, 8 * torch.finfo(self.dtype).eps)
        return self.worst <= share * self.largest + 1e-6


def difference(outputs: Any, others: Any) -> Difference:
    """Compare two trees of outputs, tensor by tensor; only floating-point tensors count."""
    pairs = list(zip(pytree.tree_leaves(outputs), pytree.tree_leaves(others), strict=True))
    pairs = [(a, b) for a, b in pairs if isinstance(a, Tensor) and a.is_floating_point()]
    gaps = [float((a - b).abs().max()) if a.shape == b.shape else torch.inf for a, b in pairs]
    worst = torch.inf if any(gap != gap for gap in gaps) else max(gaps, default=0.0)
    return Difference(
        worst,
        max((float(a.abs().max()) for a, _ in pairs), default=0.0),
        pairs[0][0].dtype if pairs else torch.float32,
    )
