"""``flipout`` against weight draws, input by input, by z-tests (see ``zoo.stats``): exact with
shared weights too.
"""

import pytest
import torch
from zoo.models import FAMILIES, Passes, agree, make_model, make_posterior
from zoo.networks import make


@pytest.mark.parametrize("kind", [kind for kind in FAMILIES if kind != "samples"])
def test_every_family_on_an_mlp(kind):
    net, x = make("mlp")
    agree(net, x, kind, "flipout")


@pytest.mark.parametrize("kind", ["mean_field", "kron"])
def test_random_weights_with_point_biases(kind):
    net, x = make("mlp")
    agree(net, x, kind, "flipout", random="weights")


CASES = [
    (name, "mean_field")
    for name in ("conv", "grouped", "transposed", "embedding", "sequence", "conv1d")
]


@pytest.mark.parametrize(
    ("name", "kind"), [*CASES, ("conv", "kron"), ("sequence", "kron"), ("conv", "low_rank")]
)
def test_shared_positions(name, kind):
    net, x = make(name)
    agree(net, x, kind, "flipout", draws=2000, reference=4000)


@pytest.mark.parametrize("name", ["tied", "shared_layer", "cross_bias"])
def test_weights_used_beyond_one_linear_map(name):
    net, x = make(name)
    agree(net, x, "mean_field", "flipout", draws=2000)


def test_noise_of_two_examples_is_uncorrelated_given_the_network():
    """The signs decorrelate examples: over passes, outputs of equal inputs have no covariance in
    the linear part.
    """
    net = torch.nn.Linear(5, 2).double()
    x = torch.randn(1, 5).double().expand(2, 5)
    model = make_model(net)
    out = Passes(model, make_posterior("mean_field", model), "flipout", x)(4000)
    centred = out - out.mean(0)
    product = centred[:, 0] * centred[:, 1]
    z = product.mean(0) / (product.std(0) / len(product) ** 0.5)
    assert z.abs().max() < 5.0
