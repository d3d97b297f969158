import pytest
import torch
from torch.distributions import Normal

from credo.core.errors import CredoError
from credo.priors import Flat, horseshoe, is_proper, log_uniform


def test_its_log_density_is_zero_everywhere():
    value = torch.linspace(-1e6, 1e6, 5, dtype=torch.float64)
    assert torch.equal(Flat().log_prob(value), torch.zeros(5).double())


def test_it_cannot_be_sampled():
    with pytest.raises(
        CredoError, match=r"improper and cannot be sampled; give the parameter a proper prior"
    ):
        Flat().sample()
    with pytest.raises(CredoError, match="improper"):
        Flat().sample(torch.Size([3]))


def test_which_densities_integrate_to_one():
    assert [is_proper(d) for d in (Flat(), log_uniform(), horseshoe(), Normal(0.0, 1.0))] == [
        False,
        False,
        True,
        True,
    ]
