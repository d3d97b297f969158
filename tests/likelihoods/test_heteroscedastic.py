from __future__ import annotations

import pytest
import torch

from credo.core.errors import NetworkError, SettingError
from credo.likelihoods import Heteroscedastic


def test_layout_is_means_then_raw_deviations():
    f = torch.tensor([[1.0, 2.0, -100.0, 3.0]])
    mean, std = Heteroscedastic(min_std=0.01).split(f)
    assert mean.tolist() == [[1.0, 2.0]]
    torch.testing.assert_close(
        std, torch.tensor([[0.01, 0.01 + torch.log1p(torch.tensor(3.0).exp())]])
    )


def test_num_outputs_and_errors():
    assert Heteroscedastic().num_outputs(torch.zeros(5, 3)) == 6
    assert Heteroscedastic().target_dim(6) == 3
    with pytest.raises(NetworkError, match="got 3 outputs"):
        Heteroscedastic()(torch.zeros(2, 3))
    with pytest.raises(SettingError, match="min_std=0"):
        Heteroscedastic(0.0)


def test_aleatoric_is_the_mean_predicted_variance():
    f = torch.tensor([[[0.0, -1.0]], [[2.0, 1.0]]], dtype=torch.float64)
    aleatoric, epistemic = Heteroscedastic().uncertainty(f)
    std = Heteroscedastic().split(f)[1]
    torch.testing.assert_close(aleatoric, std.square().mean(0))
    torch.testing.assert_close(epistemic, torch.ones_like(epistemic))
