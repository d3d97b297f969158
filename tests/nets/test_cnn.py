import pytest
import torch
from torch import nn

from credo.core.errors import SettingError
from credo.nets import small_cnn


@pytest.mark.parametrize("size", [(1, 1), (5, 3), (8, 8), (33, 20)])
def test_any_image_size(size):
    assert small_cnn(3, 4)(torch.randn(2, 3, *size)).shape == (2, 4)


def test_batch_norm_is_optional():
    assert not any(isinstance(m, nn.BatchNorm2d) for m in small_cnn())
    assert sum(isinstance(m, nn.BatchNorm2d) for m in small_cnn(batch_norm=True)) == 2


def test_bad_channels_are_named():
    with pytest.raises(SettingError, match=r"widths\[1\]=0"):
        small_cnn(widths=(4, 0))
    with pytest.raises(SettingError, match="widths=3 is not valid; expected the channels of every"):
        small_cnn(widths=3)
