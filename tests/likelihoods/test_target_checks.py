from __future__ import annotations

import numpy as np
import pytest
import torch

from credo.core.errors import DataError
from credo.likelihoods import target_checks as targets


def test_arrays_are_accepted():
    assert targets.real_targets(np.array([1.0, 2.0]), "x").dtype == torch.float64
    assert targets.label_targets(np.array([0, 1], dtype=np.int32), "x", None).dtype == torch.int64


@pytest.mark.parametrize(
    "check",
    [targets.real_targets, targets.count_targets, targets.binary_targets, targets.unit_targets],
)
def test_what_every_real_check_refuses(check):
    for bad, message in (
        (torch.tensor(1.0), "shape"),
        (torch.zeros(0), "at least one"),
        (torch.zeros(2, 2, 2), "shape"),
        (torch.tensor([0.0, float("nan")]), "row 1, column 0 is nan"),
        (torch.zeros(2, dtype=torch.complex64), "complex"),
        (np.array(["a", "b"]), "not numbers"),
    ):
        with pytest.raises(DataError, match=message):
            check(bad, "owner")


def test_labels_refuse_fractions():
    with pytest.raises(DataError, match=r"row 1 is 0\.5"):
        targets.label_targets(torch.tensor([0.0, 0.5]), "x", None)
    with pytest.raises(DataError, match="row 0 is nan"):
        targets.label_targets(torch.tensor([float("nan"), 0.0]), "x", 3)


def test_refuse_constant():
    y = torch.tensor([[1.0, 2.0], [1.0, 3.0]])
    with pytest.raises(DataError, match="x: all 2 targets in column 0 are 1; expected variety"):
        targets.refuse_constant(y, "x", "variety")
    assert targets.refuse_constant(y[:, 1], "x", "variety") is not None
