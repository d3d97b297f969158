"""What refusing the most uncertain predictions buys."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from credo.metrics.metric_checks import check_same, check_vectors


class RiskCoverage(NamedTuple):
    """coverage ``(N,)`` = 1/N ..

    1, risk ``(N,)`` = mean loss of that share of most certain data, and the area: the mean risk.
    """

    coverage: Tensor
    risk: Tensor
    area: Tensor


def risk_coverage(uncertainty: Tensor, loss: Tensor) -> RiskCoverage:
    """The risk-coverage curve: keep data in order of uncertainty and average their loss (0/1
    errors, squared errors, ...).

    Data of equal uncertainty enter with their average loss, so their order in the file does not
    matter.
    """
    check_vectors(uncertainty=uncertainty, loss=loss)
    check_same(uncertainty, loss, "uncertainties and losses")
    loss = loss.double()
    values, group, count = torch.unique(uncertainty, return_inverse=True, return_counts=True)
    average = (
        torch.zeros(len(values), dtype=loss.dtype, device=loss.device).index_add(0, group, loss)
        / count
    )
    num_kept = torch.arange(1, len(loss) + 1, dtype=loss.dtype, device=loss.device)
    risk = average.repeat_interleave(count).cumsum(0) / num_kept
    return RiskCoverage(num_kept / len(loss), risk, risk.mean())
