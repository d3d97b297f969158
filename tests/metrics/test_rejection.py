from __future__ import annotations

import pytest
import torch

from credo import metrics
from credo.core.errors import DataError


def test_curve_by_hand():
    curve = metrics.risk_coverage(torch.tensor([0.3, 0.1, 0.2]), torch.tensor([1.0, 0.0, 1.0]))
    assert curve.coverage.tolist() == pytest.approx([1 / 3, 2 / 3, 1.0])
    assert curve.risk.tolist() == pytest.approx([0.0, 0.5, 2 / 3])
    assert curve.area.item() == pytest.approx((0.5 + 2 / 3) / 3)


def test_ties_do_not_depend_on_order():
    uncertainty, loss = torch.tensor([1.0, 0.0, 1.0, 1.0]), torch.tensor([1.0, 0.0, 0.0, 0.0])
    first = metrics.risk_coverage(uncertainty, loss)
    flipped = metrics.risk_coverage(uncertainty.flip(0), loss.flip(0))
    torch.testing.assert_close(first.risk, flipped.risk)
    assert first.risk.tolist() == pytest.approx([0.0, 1 / 6, 2 / 9, 1 / 4])


def test_full_coverage_has_the_mean_loss():
    loss = torch.rand(50, generator=torch.Generator().manual_seed(0))
    curve = metrics.risk_coverage(torch.rand(50, generator=torch.Generator().manual_seed(1)), loss)
    assert curve.risk[-1].item() == pytest.approx(loss.mean().item(), rel=1e-6)
    with pytest.raises(DataError, match="uncertainties and losses"):
        metrics.risk_coverage(loss, loss[:3])
