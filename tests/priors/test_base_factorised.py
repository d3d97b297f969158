import torch
from torch.distributions import Laplace, Normal

from credo.priors import Factorised

SHAPES = {"w": torch.Size((2, 3)), "b": torch.Size(())}
PRIOR = Factorised({"w": Normal(0.0, 2.0), "b": Laplace(1.0, 0.5)}, SHAPES)


def test_the_log_density_sums_over_elements_and_keeps_leading_axes():
    params = {name: torch.randn(5, *shape) for name, shape in SHAPES.items()}
    each = PRIOR.log_prob_each(params)
    total = each["w"].sum((-2, -1)) + each["b"]
    assert total.shape == (5,)
    torch.testing.assert_close(PRIOR.log_prob(params), total)


def test_draws_have_the_shapes_and_types_asked_for():
    like = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in SHAPES.items()}
    drawn = PRIOR.sample(4, like)
    assert {n: d.shape for n, d in drawn.items()} == {n: (4, *s) for n, s in SHAPES.items()}
    assert all(d.dtype == torch.float64 for d in drawn.values())
