"""Linear maps with known and random inputs, weights and biases."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from zoo.moments import agrees, gaussian, matches, shell_and_posterior

from credo.core.errors import NetworkError
from credo.core.seeds import Streams
from credo.core.shell import Shell
from credo.estimators.moments import Moments, place_moments, propagate
from credo.posteriors import Delta, Kron, MeanField, Posterior

KNOWN = {
    "linear": (lambda: nn.Linear(3, 2), (2, 2, 3)),
    "conv1d": (lambda: nn.Conv1d(2, 3, 2), (2, 2, 3)),
    "conv2d": (lambda: nn.Conv2d(2, 2, 2, padding=1), (1, 2, 2, 2)),
    "transposed": (lambda: nn.ConvTranspose2d(2, 2, 2), (1, 2, 2, 2)),
}


@torch.no_grad()
@pytest.mark.parametrize("full", [False, True], ids=["diagonal", "full"])
@pytest.mark.parametrize("name", KNOWN)
def test_known_weights(name, full):
    agrees(KNOWN[name][0]().double(), gaussian(KNOWN[name][1], full), draws=5000)


@torch.no_grad()
@pytest.mark.parametrize("covariance", ["diagonal", "full"])
@pytest.mark.parametrize("random", ["weight", "bias", "apart"])
def test_weight_and_bias_of_different_families(random, covariance):
    """A random weight with a known bias, the other way round, and two families."""
    layer, x, draws = nn.Conv1d(1, 2, 2).double(), torch.randn(2, 1, 3).double(), 20_000
    values = {n: p.detach() for n, p in layer.named_parameters()}
    spread = {"weight": ["weight"], "bias": ["bias"], "apart": ["weight", "bias"]}[random]
    members = [
        MeanField.start({n: values[n]}, 0.5) if n in spread else Delta.start({n: values[n]})
        for n in values
    ]
    posterior, shell = Posterior(members), Shell(layer)
    place_moments(shell, posterior, covariance)
    params = posterior.draw(Streams(0, range(draws)))
    matches(shell(x), torch.vmap(lambda w, b: F.conv1d(x, w, b))(params["weight"], params["bias"]))


@torch.no_grad()
def test_embeddings_have_the_moments_of_their_rows():
    net = nn.Embedding(5, 3).double()
    shell, posterior = shell_and_posterior(net, lambda v: MeanField.start(v, 0.3))
    mean, var = propagate(shell, posterior, torch.tensor([[0, 2], [1, 1]]))
    assert mean.shape == var.shape == (2, 2, 3) and torch.allclose(var, torch.full_like(var, 0.09))


def test_a_weight_used_twice_is_refused():
    layer = nn.Linear(3, 3).double()
    shell, posterior = shell_and_posterior(
        nn.Sequential(layer, nn.ReLU(), layer), lambda v: MeanField.start(v, 0.1)
    )
    with pytest.raises(NetworkError, match=r"linear.*0\.bias, 0\.weight is used a second time"):
        propagate(shell, posterior, torch.zeros(2, 3).double())


def test_random_weights_as_inputs_are_refused():
    class Gram(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3, bias=False)

        def forward(self, x):
            return F.linear(self.layer.weight, self.layer.weight) + x

    shell, posterior = shell_and_posterior(Gram().double(), lambda v: MeanField.start(v, 0.1))
    with pytest.raises(NetworkError, match="linear in Gram"):
        propagate(shell, posterior, torch.zeros(3, 3).double())


@torch.no_grad()
def test_the_bias_column_of_a_matrix_normal_is_used():
    layer = nn.Linear(3, 2).double()
    shell, posterior = shell_and_posterior(layer, lambda v: Kron.start(v, 0.3))
    place_moments(shell, posterior)
    out = shell(torch.zeros(1, 3).double())
    assert isinstance(out, Moments) and torch.allclose(
        out.var_or_cov, torch.full((1, 2), 0.09).double()
    )
