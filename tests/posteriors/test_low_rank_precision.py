import pytest
import torch
from torch.distributions import MultivariateNormal
from zoo.families import flat, values

from credo.core.seeds import generator
from credo.posteriors import LowRankPrecision


def parts(rank, scale=1.0):
    precision = 0.5 + torch.rand(15, generator=generator("d"), dtype=torch.float64)
    return precision, scale * torch.randn(15, rank, generator=generator("u"), dtype=torch.float64)


@pytest.mark.parametrize(("rank", "scale"), [(1, 1.0), (4, 100.0), (15, 1.0), (3, 1e-9)])
def test_its_precision_is_diagonal_plus_low_rank(rank, scale):
    precision, factor = parts(rank, scale)
    family = LowRankPrecision.of(values(), precision, factor)
    normal = MultivariateNormal(
        flat(values()), precision_matrix=torch.diag(precision) + factor @ factor.mT
    )
    point = values(9)
    assert torch.allclose(family.log_prob(point), normal.log_prob(flat(point)))
    assert torch.allclose(family.entropy(), normal.entropy())
    torch.testing.assert_close(flat(family.marginals()[1]).detach(), normal.variance)
    root = family.times_root(torch.eye(15).double()).detach()
    torch.testing.assert_close(root @ root.mT, normal.covariance_matrix)


def test_without_curvature_it_is_the_prior():
    precision, factor = parts(3, 0.0)
    family = LowRankPrecision.of(values(), precision, factor)
    torch.testing.assert_close(flat(family.marginals()[1]).detach(), 1 / precision)


def test_single_precision_keeps_a_strong_direction():
    """1 - sum V^2 L / (1 + L) loses digits where the data say nearly everything; it must not become
    negative.
    """
    precision, factor = parts(15, 1e6)
    single = {n: v.float() for n, v in values().items()}
    var = flat(LowRankPrecision.of(single, precision, factor).marginals()[1])
    assert var.dtype == torch.float32 and bool((var >= 0).all())
