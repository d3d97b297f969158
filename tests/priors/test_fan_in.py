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
    """With std sqrt 2 and no biases V[f] per layer is 2 E[relu(h)^2] = V[h]: exactly kept from
    layer to layer.
    """
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(50, generator=generator, dtype=torch.float64)
    inputs, expected = x.expand(3000, 50), 2 * x.square().mean()  # the first layer sees no ReLU
    for fan_in, width in ((50, 300), (300, 300), (300, 300), (300, 1)):
        scale = FanIn(math.sqrt(2)).at(sites_of(nn.Linear(fan_in, 1).double())["weight"]).scale
        # fresh Gaussian weights per draw give N(0, scale^2 |h|^2) per unit: no need to draw the
        # matrix
        units = (
            torch.randn(3000, width, generator=generator, dtype=torch.float64)
            * scale
            * inputs.norm(dim=-1, keepdim=True)
        )
        has_variance(units[:, 0], expected)
        inputs = torch.relu(units)


def test_description_and_config():
    assert (
        FanIn(2.0).config() == {"name": "fan_in", "std": 2.0}
        and FanIn(2.0).describe() == "Normal(0, 2 / sqrt(fan_in))"
    )
