import pytest
import torch
from torch import nn
from torch.distributions import Normal

from credo import BNN
from credo.core.errors import NetworkError, SettingError
from credo.core.seeds import mix
from credo.likelihoods import Gaussian
from credo.methods.sampling.parts.chains import start_values

DOUBLE = torch.float64


def bnn(likelihood=None, hidden=False, **how):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)) if hidden else nn.Linear(2, 1)
    return BNN(net.double(), likelihood or Gaussian(std=0.3), **({"prior": Normal(0.0, 1.0)} | how))


def test_random_starts_are_the_modules_own_and_differ_by_chain():
    model = bnn(hidden=True, random="last").model
    starts = start_values(model, "random", 3, seed=4)
    for c in range(3):
        own = model.random_values(mix(4, "chain", c))
        assert all(torch.equal(starts[n][c], own[n]) for n in model.random)
    assert all(
        torch.equal(starts[n][0], starts[n][2]) for n in model.point
    )  # point parameters are one for all
    assert not torch.equal(starts["2.weight"][0], starts["2.weight"][1])


def test_pretrained_and_prior_starts():
    model = bnn(prior=Normal(7.0, 0.01)).model
    same = start_values(model, "pretrained", 3, 0)
    assert all(
        torch.equal(same[n][c], p) for n, p in model.net.named_parameters() for c in range(3)
    )
    drawn = start_values(model, "prior", 3, 0)
    assert all((v - 7).abs().max() < 0.1 and not torch.equal(v[0], v[1]) for v in drawn.values())
    assert all(torch.equal(drawn[n], start_values(model, "prior", 3, 0)[n]) for n in drawn)


def test_given_starts_with_and_without_an_axis_of_chains():
    model = bnn().model
    wide = torch.arange(6.0).reshape(3, 1, 2)
    starts = start_values(model, {"weight": wide, "bias": torch.tensor([9.0])}, 3, 0)
    assert torch.equal(starts["weight"], wide.double()) and starts["bias"].tolist() == [[9.0]] * 3
    partly = start_values(model, {"weight": wide}, 3, 0)
    assert torch.equal(partly["bias"], model.net.bias.detach().expand(3, 1))
    with pytest.raises(NetworkError, match="init holds 'wieght', which the network does not have"):
        start_values(model, {"wieght": wide}, 3, 0)
    with pytest.raises(SettingError, match="init gives 'weight' for 2 chains, but there are 3"):
        start_values(model, {"weight": wide[:2]}, 3, 0)
