from __future__ import annotations

import pytest
import sklearn.metrics
import torch
from torchmetrics.functional.classification import multiclass_calibration_error

from credo import metrics

GENERATOR = torch.Generator().manual_seed(0)
PROBS = torch.randn(500, 4, generator=GENERATOR, dtype=torch.float64).mul(2).softmax(-1)
LABELS = torch.randint(4, (500,), generator=GENERATOR)


def test_accuracy_and_brier_equal_sklearn():
    assert metrics.accuracy(PROBS, LABELS).item() == pytest.approx(
        sklearn.metrics.accuracy_score(LABELS, PROBS.argmax(-1))
    )
    positive = PROBS[:, :2] / PROBS[:, :2].sum(-1, keepdim=True)
    binary = (LABELS > 1).long()
    reference = sklearn.metrics.brier_score_loss(binary.numpy(), positive[:, 1].numpy())
    assert metrics.brier(positive, binary).item() == pytest.approx(2 * reference)


def test_brier_by_hand():
    value = metrics.brier(torch.tensor([[0.7, 0.2, 0.1]], dtype=torch.float64), torch.tensor([1]))
    assert value.item() == pytest.approx(0.49 + 0.64 + 0.01)


def test_reliability_by_hand():
    probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6], [0.45, 0.55]], dtype=torch.float64)
    table = metrics.reliability(probs, torch.tensor([0, 1, 1, 1]), bins=4)
    assert table.count.tolist() == [0, 0, 2, 2]
    assert table.confidence.tolist() == pytest.approx([0, 0, 0.575, 0.85])
    assert table.accuracy.tolist() == pytest.approx([0, 0, 1.0, 0.5])
    assert metrics.ece(probs, torch.tensor([0, 1, 1, 1]), bins=4).item() == pytest.approx(
        0.5 * 0.425 + 0.5 * 0.35
    )
    # Two data per bin by rank: the same bins here.
    assert metrics.adaptive_ece(probs, torch.tensor([0, 1, 1, 1]), bins=2).item() == pytest.approx(
        0.5 * 0.425 + 0.5 * 0.35
    )


@pytest.mark.parametrize("bins", [1, 10, 15])
def test_ece_equals_torchmetrics(bins):
    reference = multiclass_calibration_error(PROBS, LABELS, num_classes=4, n_bins=bins, norm="l1")
    assert metrics.ece(PROBS, LABELS, bins).item() == pytest.approx(reference.item(), abs=1e-6)


def test_edges_of_bins():
    certain = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert metrics.ece(certain, torch.tensor([0, 1])).item() == 0.0
    assert metrics.ece(certain, torch.tensor([1, 0])).item() == 1.0
    assert metrics.reliability(certain, torch.tensor([0, 1]), bins=5).count.tolist() == [
        0,
        0,
        0,
        0,
        2,
    ]


def test_adaptive_bins_hold_equal_counts_and_never_exceed_the_data():
    one_bin = (PROBS.max(-1).values.mean() - metrics.accuracy(PROBS, LABELS)).abs()
    assert metrics.adaptive_ece(PROBS, LABELS, bins=1).item() == pytest.approx(one_bin.item())
    confidence, label = PROBS.max(-1)
    order = confidence.argsort(stable=True)
    chunks = [
        (confidence[c].mean() - (label == LABELS)[c].double().mean()).abs() for c in order.chunk(10)
    ]
    assert metrics.adaptive_ece(PROBS, LABELS, bins=10).item() == pytest.approx(
        torch.stack(chunks).mean().item()
    )
    few = metrics.adaptive_ece(PROBS[:3], LABELS[:3], bins=15)
    assert few.item() == pytest.approx(
        (confidence[:3] - (label == LABELS)[:3].double()).abs().mean().item()
    )
