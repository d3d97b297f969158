from __future__ import annotations

import numpy as np
import pytest
import torch

from credo.core.errors import DataError
from credo.likelihoods import target_checks as targets


def test_arrays_are_accepted():
    assert targets.real_targets(np.array([1.0, 2.0]), "x").dtype == torch.float64


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
