import torch
from zoo.stats import follows, has_mean, has_variance

from credo.kernels.log_density import Point, choose, differentiable, normal, uniform


def target(position):
    return -0.25 * position.pow(4).sum(-1), -position.pow(3)


def some(chains=3, size=4, dtype=torch.float64):
    return torch.randn(chains, size, generator=torch.Generator().manual_seed(1), dtype=dtype)


def test_a_point_holds_the_target():
    position = some()
    point = Point.at(target, position)
    assert torch.equal(point.value, target(position)[0]) and torch.equal(
        point.slope, target(position)[1]
    )
    assert point.position is position


def test_a_differentiable_density_gives_its_slope_chain_by_chain():
    position = some()
    value, slope = differentiable(lambda x: -0.25 * x.pow(4).sum(-1))(position)
    assert torch.allclose(value, target(position)[0]) and torch.allclose(slope, target(position)[1])
    assert not value.requires_grad and not slope.requires_grad and not position.requires_grad


def test_slopes_do_not_depend_on_the_callers_gradient_mode_and_leave_no_graph():
    wanted = target(some())[1]
    with torch.no_grad():
        assert torch.allclose(differentiable(lambda x: -0.25 * x.pow(4).sum(-1))(some())[1], wanted)
    leaf = some().requires_grad_()
    value, slope = differentiable(lambda x: -0.25 * x.pow(4).sum(-1))(leaf * 1.0)
    assert torch.allclose(slope, wanted) and leaf.grad is None and value.grad_fn is None


def test_a_constant_chain_has_slope_zero_beside_others():
    """where() keeps a chain outside the support from giving its neighbours NaN."""
    position = torch.tensor([[0.5], [-3.0], [2.0]], dtype=torch.float64)
    value, slope = differentiable(lambda x: torch.where(x > 0, x.abs().log(), -torch.inf).sum(-1))(
        position
    )
    assert value.tolist()[1] == -torch.inf and slope[1] == 0.0
    assert torch.allclose(slope[[0, 2], 0], torch.tensor([2.0, 0.5], dtype=torch.float64))


def test_choosing_is_chain_by_chain_and_what_is_not_taken_may_be_nan():
    old, bad = (
        Point.at(target, some()),
        Point(some() * torch.nan, some()[:, 0] * torch.nan, some() * torch.nan),
    )
    take = torch.tensor([True, False, True])
    new = Point.at(target, some() + 1)
    got = choose(take, new, old)
    for mine, theirs, before in zip(got, new, old, strict=True):
        assert torch.equal(mine[take], theirs[take]) and torch.equal(mine[~take], before[~take])
    assert all(
        torch.equal(a, b)
        for a, b in zip(choose(torch.zeros(3, dtype=torch.bool), bad, old), old, strict=True)
    )


def test_random_numbers_have_the_wanted_law_type_and_stream():
    like = torch.empty(20_000, 2, dtype=torch.float32)
    generator = torch.Generator().manual_seed(0)
    outside = torch.get_rng_state()
    x, u = normal(like, generator), uniform(like, generator)
    assert torch.equal(outside, torch.get_rng_state())
    assert x.dtype == u.dtype == torch.float32 and x.shape == u.shape == like.shape
    has_mean(x.double(), 0.0)
    has_variance(x.double(), 1.0)
    follows(u.double().flatten(), "uniform")
    assert float(u.min()) >= 0.0 and float(u.max()) < 1.0
    assert torch.equal(normal(like, torch.Generator().manual_seed(0)), x)
