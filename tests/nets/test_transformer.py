import pytest
import torch

from credo.core.errors import SettingError
from credo.nets import transformer_classifier


def test_positions_make_order_matter():
    torch.manual_seed(0)
    net = transformer_classifier(vocab=10, outputs=3, max_length=6)
    x = torch.arange(6)[None]
    assert net(x).shape == (1, 3)
    assert not torch.allclose(net(x), net(x.flip(1)))


def test_no_noise_in_training_by_default():
    net = transformer_classifier(in_features=4).train()
    x = torch.randn(2, 3, 4)
    torch.testing.assert_close(net(x), net(x), rtol=0, atol=0)


def test_bad_arguments_are_refused_with_values():
    with pytest.raises(SettingError, match=r"width=30.*heads=4"):
        transformer_classifier(vocab=3, width=30)
    with pytest.raises(SettingError, match=r"dropout=1\.0"):
        transformer_classifier(vocab=3, dropout=1.0)
    with pytest.raises(SettingError, match="max_length=5"):
        transformer_classifier(vocab=3, max_length=4)(torch.zeros(1, 5, dtype=torch.long))
