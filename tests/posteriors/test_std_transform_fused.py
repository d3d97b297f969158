"""Draws and moments with their KL in one node, against autograd of the closed form."""

import pytest
import torch
from torch.distributions import Normal
from zoo.families import SHAPES, values
from zoo.models import shaken

from credo.core.linear_map import bind
from credo.core.seeds import Ambient, Streams, isolated
from credo.posteriors import MeanField
from credo.priors import Factorised

PRIORS = {
    "scalar": {n: Normal(torch.zeros(()).double(), torch.tensor(1.3).double()) for n in SHAPES},
    "scalar with a mean": {
        n: Normal(torch.tensor(0.4).double(), torch.tensor(0.7).double()) for n in SHAPES
    },
    "per layer": {
        "w": Normal(torch.tensor(0.0).double(), torch.tensor(0.5).double()),
        "b": Normal(torch.tensor(0.0).double(), torch.tensor(2.0).double()),
    },
    "per element": {
        n: Normal(torch.randn(s).double(), torch.rand(s).double() + 0.5) for n, s in SHAPES.items()
    },
    "same mean, other spread": {
        "w": Normal(torch.tensor(0.3).double(), torch.tensor(0.5).double()),
        "b": Normal(torch.tensor(0.3).double(), torch.tensor(2.0).double()),
    },
}


LINEAR = bind(torch.nn.functional.linear, (None, None), {})[0]


def met(draw):
    """A loss on what a linear layer gives when it meets the draw."""
    with isolated(1):
        return draw.local(LINEAR, torch.randn(5, 4).double(), "w", "b", Ambient()).pow(3).sum()


@pytest.mark.parametrize("way", ["weights", "moments"])
@pytest.mark.parametrize("scale", ["log", "softplus"])
@pytest.mark.parametrize("name", PRIORS)
def test_folded_kl_equals_autograd_of_the_closed_form(name, scale, way):
    """Value and gradients to 1e-10, with a loss on the draw riding along."""
    prior = Factorised(PRIORS[name], SHAPES)
    results = []
    for folded in (True, False):
        family = shaken(MeanField.start(values(), 0.3, scale))
        draw = family.begin(Streams(3), family.fold(prior) if folded else None)
        if way == "weights":
            loss = sum((t**3).sum() for t in draw.weights(family.names).values())
        else:
            loss = met(draw)
        kl = draw.kl if folded else family.kl(prior)
        assert kl is not None
        (0.7 * kl + 1.9 * loss).backward()
        results.append((kl.detach(), family.flat_mean.grad, family.raw_std.grad))
    for one, other in zip(*results, strict=True):
        assert torch.allclose(one, other, rtol=1e-10, atol=1e-10)


def test_the_kl_alone_has_the_right_gradient():
    """No loss on the draw at all: the gradient of the weights is then missing, not zero."""
    prior = Factorised(PRIORS["per element"], SHAPES)
    for way in ("weights", "moments"):
        family, plain = (shaken(MeanField.start(values(), 0.3)) for _ in range(2))
        draw = family.begin(Streams(3), family.fold(prior))
        draw.weights(family.names) if way == "weights" else draw.prepare()
        draw.kl.backward()
        plain.kl(prior).backward()
        assert torch.allclose(family.flat_mean.grad, plain.flat_mean.grad, atol=1e-12)
        assert torch.allclose(family.raw_std.grad, plain.raw_std.grad, atol=1e-12)
