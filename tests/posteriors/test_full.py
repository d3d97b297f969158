import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal
from zoo.families import MAKERS, flat, values

from credo.core.errors import CredoError
from credo.core.linear_map import bind
from credo.posteriors import Full


def test_set_and_read_back():
    tril = torch.randn(15, 15).double().tril(-1) + torch.diag(torch.rand(15).double() + 0.1)
    family = Full.start(values()).set(torch.arange(15.0).double(), tril)
    assert torch.allclose(family.scale_tril(), tril) and torch.allclose(
        family.covariance(), tril @ tril.T
    )
    assert family.mean()["b"].tolist() == [12.0, 13.0, 14.0]


def test_density_against_torch():
    family = MAKERS["full"]()
    normal = MultivariateNormal(family.flat_mean, family.covariance())
    point = values(9)
    assert torch.allclose(family.log_prob(point), normal.log_prob(flat(point)))
    assert torch.allclose(family.entropy(), normal.entropy())


def test_too_many_parameters_are_refused_with_a_remedy():
    with pytest.raises(
        CredoError, match=r"20001 parameters is too large \(at most 20000\).*random='last'"
    ):
        Full({"w": (20001,)})


def test_moments_need_a_fully_connected_layer():
    op = bind(nn.functional.conv1d, (None, None), {})[0]
    with pytest.raises(CredoError, match="no rule for moments through conv1d"):
        MAKERS["full"]().moments(op, torch.zeros(1, 1, 1), torch.zeros(1, 1, 1), "w", "b")
