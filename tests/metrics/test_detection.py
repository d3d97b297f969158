from __future__ import annotations

import numpy as np
import pytest
import sklearn.metrics
import torch

from credo import metrics
from credo.core.errors import DataError, SettingError

GENERATOR = torch.Generator().manual_seed(0)
INSIDE = torch.randn(300, generator=GENERATOR).mul(10).round()  # rounded, so that scores tie
OUTSIDE = torch.randn(200, generator=GENERATOR).mul(10).round() + 8
SCORES = torch.cat([INSIDE, OUTSIDE]).numpy()
TRUTH = np.repeat([0, 1], [300, 200])


def test_areas_equal_sklearn():
    assert metrics.auroc(INSIDE, OUTSIDE).item() == pytest.approx(
        sklearn.metrics.roc_auc_score(TRUTH, SCORES)
    )
    assert metrics.aupr(INSIDE, OUTSIDE).item() == pytest.approx(
        sklearn.metrics.average_precision_score(TRUTH, SCORES)
    )


def test_large_scores_do_not_tie():
    """Scores of any size count by their order; a sigmoid in float32 would make these equal."""
    assert metrics.auroc(torch.tensor([100.0, 200.0]), torch.tensor([300.0, 400.0])).item() == 1.0
    assert metrics.auroc(torch.tensor([1.0]), torch.tensor([1.0])).item() == 0.5


@pytest.mark.parametrize("fpr", [0.0, 0.01, 0.05, 0.1, 0.5, 1.0])
def test_tpr_is_the_best_over_all_thresholds(fpr):
    best = max(
        (t <= OUTSIDE).double().mean().item()
        for t in [*SCORES.tolist(), float("inf")]
        if (t <= INSIDE).double().mean().item() <= fpr + 1e-12
    )
    assert metrics.tpr_at_fpr(INSIDE, OUTSIDE, fpr).item() == pytest.approx(best)


def test_tpr_by_hand():
    inside = torch.arange(100.0)
    assert metrics.tpr_at_fpr(inside, torch.tensor([94.0, 94.5, 95.0, 200.0])).item() == 0.75


def test_bad_scores():
    with pytest.raises(DataError, match="outside"):
        metrics.auroc(INSIDE, torch.tensor([float("nan")]))
    with pytest.raises(SettingError, match=r"fpr=1\.5"):
        metrics.tpr_at_fpr(INSIDE, OUTSIDE, 1.5)
