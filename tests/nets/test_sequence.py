import pytest
import torch
from torch import nn

from credo.core.errors import SettingError
from credo.nets.sequence import sequence_input


def test_tokens_are_embedded_and_features_mapped():
    tokens = sequence_input("net", 7, None, 4)
    features = sequence_input("net", None, 3, 4)
    assert isinstance(tokens, nn.Embedding)
    assert (
        tokens(torch.zeros(2, 5, dtype=torch.long)).shape
        == features(torch.zeros(2, 5, 3)).shape
        == (2, 5, 4)
    )


@pytest.mark.parametrize("given", [(None, None), (3, 4)])
def test_exactly_one_kind_of_input(given):
    with pytest.raises(SettingError, match="pass exactly one"):
        sequence_input("net", *given, 4)
