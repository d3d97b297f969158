import pytest
import torch

from credo.core.errors import CredoError
from credo.priors import Flat


def test_its_log_density_is_zero_everywhere():
    value = torch.linspace(-1e6, 1e6, 5, dtype=torch.float64)
    assert torch.equal(Flat().log_prob(value), torch.zeros(5).double())


def test_it_cannot_be_sampled():
    with pytest.raises(CredoError, match=r"improper and cannot be sampled; give the parameter a proper prior"):
        Flat().sample()
    with pytest.raises(CredoError, match="improper"):
        Flat().sample(torch.Size([3]))
