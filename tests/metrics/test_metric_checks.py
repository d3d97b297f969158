from __future__ import annotations

import pytest
import torch

from credo.core.errors import DataError, SettingError
from credo.metrics import metric_checks as checks


def test_probabilities_and_labels():
    probs = torch.full((3, 2), 0.5)
    checks.check_probs(probs, torch.tensor([0, 1, 1]))
    for bad, message in (
        (torch.tensor([0, 1]), r"\(3, 2\) and labels \(2,\)"),
        (torch.tensor([0.0, 1.0, 1.0]), "whole numbers"),
        (torch.tensor([0, 1, 2]), "from 0 to 2 for 2 classes"),
        (torch.tensor([-1, 1, 1]), "from -1 to 1"),
    ):
        with pytest.raises(DataError, match=message):
            checks.check_probs(probs, bad)


def test_shapes_vectors_counts():
    with pytest.raises(DataError, match=r"\(3,\) and \(3, 1\)"):
        checks.check_same(torch.zeros(3), torch.zeros(3, 1), "things")
    with pytest.raises(DataError, match="scores of shape"):
        checks.check_vectors(scores=torch.tensor([1.0, float("nan")]))
    with pytest.raises(DataError, match="scores of shape"):
        checks.check_vectors(scores=torch.zeros(0))
    for bad in (0, True, 1.5):
        with pytest.raises(SettingError, match="bins="):
            checks.check_count("bins", bad)  # type: ignore[arg-type]
