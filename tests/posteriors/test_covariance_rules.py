"""Covariances through linear maps: every family against Monte Carlo with the inputs correlated
(z-tests, see ``zoo.stats``).
"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from zoo.families import MAKERS, MOMENTS
from zoo.models import make_model, make_posterior
from zoo.moments import gaussian, matches, sample

from credo.core.errors import CredoError, NetworkError
from credo.core.linear_map import bind
from credo.core.seeds import Streams
from credo.estimators.moments import make_moments
from credo.posteriors import Delta
from credo.posteriors.covariance_rules import (
    check_units,
    embedded,
    fixed_joint,
    outer,
    per_channel,
    sandwich,
)

DRAWS = 20_000


def compare(family, op, x, w, b, draws=DRAWS):
    """``joint_moments`` for a certain and for a random input against draws of weights and
    inputs.
    """
    params = family.draw(Streams(9, range(draws)))
    biases = params[b] if b else None
    for cov, inputs in (
        (None, x.expected.expand(draws, *x.shape)),
        (x.var_or_cov, sample(x, draws)),
    ):
        mean, out = family.joint_moments(op, x.expected, cov, w, b)
        call = (lambda x, w: op(x, w)) if biases is None else (lambda x, w, b: op(x, w, b))
        values = torch.vmap(call)(
            *([inputs, params[w]] if biases is None else [inputs, params[w], biases])
        )
        matches(make_moments(mean, out, True, frozenset()), values)


@torch.no_grad()
@pytest.mark.parametrize("kind", MOMENTS)
def test_dense_layers(kind):
    op = bind(F.linear, (None, None), {})[0]
    compare(MAKERS[kind](), op, gaussian((2, 4), True), "w", "b")


@torch.no_grad()
@pytest.mark.parametrize("kind", ["mean_field", "low_rank", "kron"])
def test_dense_layers_over_positions(kind):
    op = bind(F.linear, (None, None), {})[0]
    compare(MAKERS[kind](), op, gaussian((1, 2, 4), True), "w", "b")


LAYERS = {
    "conv2d": (lambda: nn.Conv2d(2, 2, 2, padding=1, stride=2), (1, 2, 2, 3)),
    "same": (lambda: nn.Conv1d(1, 2, 3, padding="same", dilation=1), (2, 1, 3)),
    "grouped": (lambda: nn.Conv1d(2, 4, 2, groups=2), (1, 2, 3)),
    "transposed": (lambda: nn.ConvTranspose1d(2, 2, 2, stride=2), (1, 2, 2)),
    "transposed grouped": (lambda: nn.ConvTranspose1d(2, 4, 2, groups=2), (1, 2, 2)),
    "conv3d": (lambda: nn.Conv3d(1, 2, 2), (1, 1, 2, 2, 3)),
}


@torch.no_grad()
@pytest.mark.parametrize("kind", ["mean_field", "low_rank", "kron"])
@pytest.mark.parametrize("name", LAYERS)
def test_convolutions_correlate_their_positions(name, kind):
    if kind == "kron" and ("grouped" in name or "transposed" in name):
        pytest.skip("a matrix normal has no columns to share there; refused, see the next test")
    torch.manual_seed(3)
    layer = LAYERS[name][0]().double()
    family = make_posterior(kind, make_model(layer)).factors[0]
    extra = {
        "groups": layer.groups,
        "stride": layer.stride,
        "padding": layer.padding,
        "dilation": layer.dilation,
    }
    function = getattr(
        F, type(layer).__name__.replace("ConvTranspose", "conv_transpose").replace("Conv", "conv")
    )
    compare(
        family,
        bind(function, (None, None), extra)[0],
        gaussian(LAYERS[name][1], True),
        "weight",
        "bias",
        8000,
    )


def test_families_without_a_rule_say_so():
    op = bind(F.conv1d, (None, None), {"groups": 2})[0]
    for kind in ("kron", "full", "samples"):
        with pytest.raises(CredoError, match="no rule for covariances through conv1d"):
            MAKERS[kind]().joint_moments(op, torch.zeros(1, 4, 1).double(), None, "w", "b")


@torch.no_grad()
@pytest.mark.parametrize("kind", ["mean_field", "low_rank"])
def test_the_same_word_twice_is_the_same_row(kind):
    family = MAKERS[kind]()
    op = bind(F.embedding, (None, None), {})[0]
    words = torch.tensor([[0, 2, 2]])
    mean, cov = family.joint_moments(op, words, None, "w", None)
    draws = family.draw(Streams(1, range(DRAWS)))["w"]
    matches(make_moments(mean, cov, True, frozenset()), draws[:, words])
    assert embedded(words, torch.ones(3, 2)).shape == (1, 6, 6)


@torch.no_grad()
def test_a_point_passes_the_covariance_on():
    family = MAKERS["delta"]()
    assert isinstance(family, Delta)
    op, x = bind(F.linear, (None, None), {})[0], gaussian((2, 4), True)
    w = family.mean()["w"]
    mean, cov = family.joint_moments(op, x.expected, x.var_or_cov, "w", "b")
    assert torch.allclose(cov, w @ x.var_or_cov @ w.mT, atol=1e-12)
    assert float(family.joint_moments(op, x.expected, None, "w", "b")[1].abs().max()) == 0
    mean, var = family.moments(op, x.expected, x.variance, "w", "b")
    assert torch.allclose(var, x.variance @ (w**2).mT)


def test_sandwich_and_fixed_joint_are_the_dense_product():
    x, matrix = gaussian((2, 3), True), torch.randn(4, 3, dtype=torch.float64)
    truth = matrix @ x.var_or_cov @ matrix.mT
    assert torch.allclose(
        sandwich(lambda rows: rows @ matrix.mT, x.var_or_cov, torch.Size([3])), truth
    )
    op = bind(F.linear, (None, None), {})[0]
    assert torch.allclose(fixed_joint(op, x.expected, x.var_or_cov, matrix, None)[1], truth)
    assert torch.equal(outer(x.expected)[0], torch.outer(x.expected[0], x.expected[0]))
    assert per_channel(op, x.expected, x.var_or_cov).shape == (2, 3, 1, 1)


def test_wide_layers_are_refused():
    with pytest.raises(NetworkError, match="5000 units.*diagonal"):
        check_units(torch.zeros(2, 5000))
