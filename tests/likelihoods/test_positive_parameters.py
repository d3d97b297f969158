from __future__ import annotations

import pytest
import torch
from torch import nn

from credo.core.errors import SettingError
from credo.likelihoods.positive_parameters import add_positive, plain, positive


def owner(*args, **settings) -> nn.Module:
    module = nn.Module()
    add_positive(module, "std", *args, **settings)
    return module


def test_fixed_and_learned():
    fixed = owner(0.5, 1.0, None)
    assert not list(fixed.parameters()) and not fixed.state_dict()
    learned = owner(None, 0.5, 2)
    assert learned.get_parameter("log_std").shape == (2,)
    for module in (fixed, learned):
        torch.testing.assert_close(
            positive(module.log_std, torch.zeros(1)).max(), torch.tensor(0.5)
        )  # type: ignore[arg-type]


def test_floor_is_added_back():
    module = owner(5.0, 1.0, None, floor=2.0)
    assert positive(module.log_std, torch.zeros(1).double(), floor=2.0).item() == pytest.approx(
        5.0, rel=1e-14
    )  # type: ignore[arg-type]
    with pytest.raises(SettingError, match=r"std=2\.0 is not valid; expected numbers above 2"):
        owner(2.0, 1.0, None, floor=2.0)


def test_bad_values_are_named():
    with pytest.raises(SettingError, match="std has 2 values but num_outputs=3"):
        owner([0.1, 0.2], 1.0, 3)
    for bad in (0, True, 1.5):
        with pytest.raises(SettingError, match="num_outputs="):
            owner(None, 1.0, bad)
    assert plain((1, 2)) == [1.0, 2.0] and plain(None) is None and plain(0.1) == 0.1
