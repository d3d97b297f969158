"""The folded KL and the pieces special to independent Gaussians; the contract is in
``test_family``.
"""

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


def test_drawing_some_parameters_keeps_the_fold():
    prior = Factorised(PRIORS["scalar"], SHAPES)
    family = shaken(MeanField.start(values(), 0.3))
    draw = family.begin(Ambient(), family.fold(prior))
    draw.prepare()
    with isolated(0):
        assert set(draw.weights(["b"])) == {"b"}
    assert torch.allclose(draw.kl, family.kl(prior))


def test_fold_is_none_where_a_prior_is_not_normal():
    family = MeanField.start(values())
    mixed = dict(PRIORS["scalar"]) | {"b": torch.distributions.Laplace(0.0, 1.0)}
    assert family.fold(Factorised(mixed, SHAPES)) is None and family.fold(None) is None


def test_start_puts_means_and_standard_deviations():
    for scale in ("log", "softplus"):
        family = MeanField.start(values(), 0.07, scale)
        assert all(torch.equal(family.mean()[n], values()[n]) for n in SHAPES)
        assert torch.allclose(family.std()["w"], torch.full((3, 4), 0.07, dtype=torch.float64))


def test_single_numbers_can_be_random():
    """0-dimensional parameters, drawn alone and together, with numbered and ambient noise."""
    family = MeanField.start({"s": torch.tensor(1.0), "v": torch.ones(2)}, 0.1)
    with isolated(0):
        assert (
            family.draw(Ambient(), ["s"])["s"].shape == ()
            and family.draw(Ambient())["s"].shape == ()
        )
    assert family.draw(Streams(0, range(3)), ["s"])["s"].shape == (3,)
