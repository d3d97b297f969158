"""Elementwise rules against Monte Carlo (z-tests, see ``zoo.stats``) in both modes."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from zoo.moments import agrees, gaussian

from credo.core.errors import NetworkError

FUNCTIONS = {
    "relu": F.relu,
    "relu method": lambda x: x.relu(),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "mish": F.mish,
    "softplus": F.softplus,
    "softplus 2": lambda x: F.softplus(x, beta=2.0),
    "elu": F.elu,
    "elu 0.5": lambda x: F.elu(x, 0.5),
    "celu": F.celu,
    "selu": F.selu,
    "logsigmoid": F.logsigmoid,
    "softsign": F.softsign,
    "sin": torch.sin,
    "cos": torch.cos,
    "square": torch.square,
    "pow": lambda x: x**2,
}


@pytest.mark.parametrize("full", [False, True], ids=["diagonal", "full"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_against_monte_carlo(name, full):
    agrees(FUNCTIONS[name], gaussian((2, 4), full))


@pytest.mark.parametrize("full", [False, True], ids=["diagonal", "full"])
@pytest.mark.parametrize(
    "module",
    [nn.ReLU, nn.LeakyReLU, nn.ELU, nn.SiLU, nn.SELU, nn.CELU, nn.Mish],
    ids=lambda m: m.__name__,
)
def test_modules_in_place_give_the_same(module, full):
    x = gaussian((2, 3), full)
    ours, theirs = module(inplace=True)(gaussian((2, 3), full)), module()(x)
    assert torch.equal(ours.expected, theirs.expected) and torch.equal(
        ours.var_or_cov, theirs.var_or_cov
    )


def test_what_was_overwritten_in_place_cannot_be_used():
    x = gaussian((2, 3), False)
    out = nn.ReLU(inplace=True)(x)
    with pytest.raises(NetworkError, match="overwritten in place"):
        out + x


@pytest.mark.parametrize("full", [False, True], ids=["diagonal", "full"])
def test_dropout_is_the_identity_in_eval_and_its_own_noise_in_training(full):
    x = gaussian((2, 3), full)
    still = F.dropout(x, 0.3, training=False)
    assert torch.equal(still.expected, x.expected) and torch.equal(still.var_or_cov, x.var_or_cov)
    agrees(lambda value: F.dropout(value, 0.3, training=True), x, draws=40_000)


def test_channel_dropout_in_training_has_no_covariance():
    with pytest.raises(NetworkError, match="dropout2d.*whole channels"):
        F.dropout2d(gaussian((2, 2, 2, 2), True), 0.3, training=True)
    agrees(
        lambda value: F.dropout2d(value, 0.3, training=True),
        gaussian((2, 2, 2, 2), False),
        draws=40_000,
    )


def test_a_function_without_a_rule_is_named():
    with pytest.raises(NetworkError, match="torch.exp.*no rule.*draw samples"):
        torch.exp(gaussian((2, 3), False))
