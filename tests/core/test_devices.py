import pytest
import torch

from credo.core.devices import check_device
from credo.core.errors import SettingError


def test_a_device_that_is_there_is_itself():
    assert check_device("cpu") == check_device(torch.device("cpu")) == torch.device("cpu")


@pytest.mark.parametrize("device", ["gpu", "xpu", "cpu:x"])
def test_other_names_are_refused(device):
    with pytest.raises(SettingError, match="expected 'cpu' or 'cuda'"):
        check_device(device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_said():
    with pytest.raises(SettingError, match="finds no GPU; use 'cpu'"):
        check_device("cuda")
