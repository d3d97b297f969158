"""Telling outside inputs from inside ones by a score: larger means more likely outside."""

from __future__ import annotations

import torch
from torch import Tensor

from credo.core.errors import SettingError
from credo.metrics.metric_checks import check_vectors


def auroc(inside: Tensor, outside: Tensor) -> Tensor:
    """P(outside score > inside score) + 1/2 P(equal): the area under the ROC curve."""
    from torchmetrics.functional.classification import binary_auroc

    return binary_auroc(*_ranked(inside, outside), validate_args=False).clamp(
        0.0, 1.0
    )  # rounding may go beyond


def aupr(inside: Tensor, outside: Tensor) -> Tensor:
    """Average precision with outside as the positive class; its chance level is the share of
    outside data.
    """
    from torchmetrics.functional.classification import binary_average_precision

    return binary_average_precision(*_ranked(inside, outside), validate_args=False)


def tpr_at_fpr(inside: Tensor, outside: Tensor, fpr: float = 0.05) -> Tensor:
    """The best share of outside data flagged by any threshold that flags at most a share ``fpr`` of
    the inside data.

    Flags are scores above v, v the largest inside score that must stay unflagged; ties with v stay
    unflagged with it.
    """
    check_vectors(inside=inside, outside=outside)
    if not 0.0 <= fpr <= 1.0:
        raise SettingError(f"fpr={fpr!r} is not valid; expected a share from 0 to 1.")
    # A hair of slack, because 0.05 * 100 may come out as 4.999...
    allowed = int(fpr * len(inside) + 1e-9 * len(inside))
    if allowed >= len(inside):
        return torch.ones((), dtype=torch.float64, device=outside.device)
    threshold = inside.sort(descending=True).values[allowed]
    return (outside > threshold).double().mean()


def _ranked(inside: Tensor, outside: Tensor) -> tuple[Tensor, Tensor]:
    """Scores as dense ranks in [0, 1], because torchmetrics squashes anything beyond by a sigmoid,
    which ties large scores.
    """
    check_vectors(inside=inside, outside=outside)
    scores = torch.cat([inside, outside])
    rank = torch.unique(scores, return_inverse=True)[1].double()
    return rank / rank.max().clamp_min(1.0), (
        torch.arange(len(scores), device=scores.device) >= len(inside)
    ).long()
