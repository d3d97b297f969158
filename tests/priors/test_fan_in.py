import math

import pytest
import torch
from torch import nn
from zoo.stats import has_variance

from credo.core.sites import sites_of
from credo.priors import FanIn


@pytest.mark.parametrize(
    ("layer", "fan_in"),
    [
        (nn.Linear(5, 6), 5),
        (nn.Conv2d(4, 6, 3), 36),
        (nn.Conv2d(4, 6, 3, groups=2), 18),
        (nn.ConvTranspose2d(4, 6, 3, groups=2), 18),
        (nn.Embedding(7, 6), 1),
    ],
)
def test_scales_per_layer(layer, fan_in):
    sites = sites_of(layer.double())
    at = FanIn(1.5).at(sites["weight"])
    assert (
        torch.allclose(at.scale, torch.tensor(1.5 / math.sqrt(fan_in)).double())
        and at.loc == 0
        and at.scale.dtype == torch.float64
    )
    if "bias" in sites:
        assert FanIn(1.5).at(sites["bias"]).scale == 1.5


def test_prior_functions_of_a_deep_relu_network_keep_their_scale():
    """With std sqrt 2 and no biases V[f] per layer is 2 E[relu(h)^2] = V[h]: exactly kept from layer to layer."""
    torch.manual_seed(1)
    x = torch.randn(1, 50).double()
    widths, h = (50, 300, 300, 300), x.expand(3000, 1, 50)
    expected = 2 * x.square().mean()  # the first layer sees no ReLU
    for i, (a, b) in enumerate(zip(widths, (*widths[2:], 1), strict=False)):
        scale = FanIn().at(sites_of(nn.Linear(a, 1).double())["weight"]).scale
        # a fresh Gaussian weight per draw gives N(0, scale^2 |h|^2) per unit: no need to draw the matrix
        h = torch.randn(3000, 1, b).double() * scale * h.norm(dim=-1, keepdim=True)
        last = h
        h = torch.relu(h)
        has_variance(last[:, 0, 0], expected)
        assert i < len(widths)


def test_description_and_config():
    assert FanIn(2.0).config() == {"name": "fan_in", "std": 2.0} and FanIn(2.0).describe() == "Normal(0, 2 / sqrt(fan_in))"
