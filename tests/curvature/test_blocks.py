"""Curvature with a prior: determinants and Gaussians against dense matrices."""

import pytest
import torch
from zoo.families import flat, values

from credo.core.errors import CredoError, SettingError
from credo.core.seeds import generator
from credo.curvature.blocks import (
    DiagonalBlock,
    FullBlock,
    KronBlock,
    LowRankBlock,
    SubnetworkBlock,
)
from credo.posteriors import EigenKron, Full, LowRankPrecision, MeanField, Subnetwork

SHAPES = {"w": torch.Size((3, 4)), "b": torch.Size((3,))}
EACH = {
    n: 0.5 + torch.rand(s, generator=generator("each", n), dtype=torch.float64)
    for n, s in SHAPES.items()
}
ONE = {n: torch.tensor(v, dtype=torch.float64) for n, v in (("w", 0.7), ("b", 1.9))}


def random(*shape):
    return torch.randn(*shape, generator=generator("block", shape), dtype=torch.float64)


def kron():
    left, right = random(3, 3) @ random(3, 3).mT, random(4, 4) @ random(4, 4).mT
    (b, q), (a, p) = torch.linalg.eigh(left), torch.linalg.eigh(right)
    return KronBlock("w", q, b, p, a), torch.kron(left, right)


def diagonal():
    curve = {
        n: torch.rand(s, generator=generator("d", n), dtype=torch.float64)
        for n, s in SHAPES.items()
    }
    return DiagonalBlock(curve), torch.diag(flat(curve))


def full(rank=5):
    root = random(15, rank)
    return FullBlock(SHAPES, root @ root.mT), root @ root.mT


def low_rank():
    root = random(15, 3)
    return LowRankBlock(SHAPES, root), root @ root.mT


MAKERS = {
    "diagonal": (diagonal, MeanField),
    "kron": (kron, EigenKron),
    "full": (full, Full),
    "low_rank": (low_rank, LowRankPrecision),
}
CASES = [(name, each) for name in MAKERS for each in (False, True) if not (name == "kron" and each)]


def prior_of(block, each):
    chosen = {n: (EACH if each else ONE)[n] for n in block.names}
    return chosen, torch.cat([chosen[n].expand(SHAPES[n]).reshape(-1) for n in block.names])


@pytest.mark.parametrize(("name", "each"), CASES)
def test_determinant_and_gaussian(name, each):
    make, kind = MAKERS[name]
    block, curve = make()
    precision, diagonal = prior_of(block, each)
    total = curve + torch.diag(diagonal)
    torch.testing.assert_close(block.log_det(precision), torch.logdet(total))
    family = block.family(values(), precision)
    assert type(family) is kind and family.names == block.names
    root = family.times_root(torch.eye(len(total)).double()).detach()
    torch.testing.assert_close(root @ root.mT, torch.linalg.inv(total))
    for n in block.names:
        torch.testing.assert_close(family.mean()[n].detach(), values()[n])


@pytest.mark.parametrize(("name", "each"), CASES)
def test_the_determinant_has_a_gradient_by_the_precision(name, each):
    """d log det(H + s D) / d s = tr((H + D)^-1 D)."""
    block, curve = MAKERS[name][0]()
    precision, diagonal = prior_of(block, each)
    scale = torch.ones((), dtype=torch.float64, requires_grad=True)
    block.log_det({n: p * scale for n, p in precision.items()}).backward()
    expected = (torch.linalg.inv(curve + torch.diag(diagonal)) @ torch.diag(diagonal)).trace()
    torch.testing.assert_close(scale.grad, expected)


def test_single_precision_families_of_double_sums():
    for make, _ in MAKERS.values():
        block, _ = make()
        family = block.family(
            {n: v.float() for n, v in values().items()}, {n: ONE[n] for n in block.names}
        )
        assert all(p.dtype == torch.float32 for p in family.parameters())


@pytest.mark.parametrize("each", [False, True])
def test_single_weights_with_a_prior(each):
    """A covariance of the chosen ones, in all parameters that are given; what is not chosen stays
    where it is.
    """
    places = {"w": torch.tensor([0, 5, 6]), "b": torch.tensor([1])}
    root = random(4, 2)
    block = SubnetworkBlock(places, root @ root.mT)
    precision = {n: EACH[n].reshape(-1)[p] if each else ONE[n] for n, p in places.items()}
    total = root @ root.mT + torch.diag(
        torch.cat([precision[n].expand(len(p)) for n, p in places.items()])
    )
    torch.testing.assert_close(block.log_det(precision), torch.logdet(total))
    family = block.family(values() | {"other": torch.ones(2).double()}, precision)
    assert (
        isinstance(family, Subnetwork)
        and family.names == ("w", "b", "other")
        and family.fixed == {"other"}
    )
    torch.testing.assert_close(family.covariance().detach(), torch.linalg.inv(total))
    assert all(torch.equal(family.mean()[n], v) for n, v in values().items())
    single = block.family({n: v.float() for n, v in values().items()}, precision)
    assert all(p.dtype == torch.float32 for p in single.parameters())


def test_kronecker_factors_need_one_width_per_tensor():
    block, _ = kron()
    with pytest.raises(
        SettingError,
        match="structure='kfac' needs one prior width for all of 'w'.*use 'diagonal' or 'full'",
    ):
        block.log_det(EACH)
    same = block.log_det({"w": torch.full((3, 4), 0.7).double()})
    torch.testing.assert_close(same, block.log_det(ONE))


def test_rounded_sums_with_eigenvalues_below_zero_are_mended_once():
    """A sum in single precision is not quite positive; a wide prior does not hide that, and the
    evidence looks at wide ones.
    """
    root = 1e4 * random(15, 2)
    rounded = (root.float() @ root.float().mT).double()
    rounded -= 2.0 * torch.eye(15).double()  # what rounding of numbers of 1e8 does
    block = FullBlock(SHAPES, rounded)
    wide = {n: torch.tensor(1e-3).double() for n in SHAPES}
    value = float(block.log_det(wide))
    kept = torch.linalg.eigvalsh(rounded)
    # Sums of double precision beside eigenvalues of 1e9 are right to 1e-7, which is 1e-4 of 1e-3,
    # for each of 13 directions.
    assert value == pytest.approx(float((kept.clamp_min(0) + 1e-3).log().sum()), abs=13e-4)
    family = block.family(values(), wide)
    assert isinstance(family, Full) and bool(torch.isfinite(family.entropy()))
    assert float(torch.linalg.eigvalsh(block.matrix).min()) > -1e-6  # against eigenvalues of 1e9


def test_what_no_rounding_explains_is_refused():
    block = FullBlock(SHAPES, torch.zeros(15, 15).double())
    with pytest.raises(
        CredoError, match="not positive definite; give the network a narrower prior"
    ):
        block.log_det({n: torch.tensor(-1.0).double() for n in SHAPES})


def test_slightly_negative_factors_count_as_zero():
    block = KronBlock(
        "w",
        torch.eye(3).double(),
        torch.tensor([-1e-9, 1.0, 2.0]).double(),
        torch.eye(4).double(),
        torch.ones(4).double(),
    )
    assert float(block.eigenvalues.min()) == 0.0
