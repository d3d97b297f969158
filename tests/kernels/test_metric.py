import pytest
import torch

from credo.core.errors import SettingError
from credo.kernels.metric import (
    MAX_DENSE,
    check_dense,
    force,
    no_moments,
    observe,
    scale_of,
    unit,
    velocity,
)


def batches(count=7, chains=5, size=3, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    mixing = torch.randn(size, size, generator=generator, dtype=torch.float64)
    return [
        (torch.randn(chains, size, generator=generator, dtype=torch.float64) @ mixing + 2).to(dtype)
        for _ in range(count)
    ]


def seen(parts, dense):
    moments = no_moments(parts[0], dense)
    for part in parts:
        moments = observe(moments, part)
    return moments


@pytest.mark.parametrize("chains", [1, 2, 5])
def test_pooled_moments_are_those_of_all_draws_of_all_chains(chains):
    parts = batches(chains=chains)
    every = torch.cat(parts)
    for dense in (False, True):
        moments = seen(parts, dense)
        cov = moments.squares / (moments.seen - 1)
        assert float(moments.seen) == len(every)
        assert torch.allclose(moments.mean, every.mean(0), rtol=1e-12)
        assert torch.allclose(cov, torch.cov(every.T) if dense else every.var(0), rtol=1e-11)


def test_moments_are_kept_in_double_precision_far_from_zero():
    """float32 sums of squares lose everything at 1e4 +- 1e-2; positions there still have 10 bits of
    spread.
    """
    parts = [p * 1e-2 + 1e4 for p in batches(50, dtype=torch.float64)]
    given = [p.float() for p in parts]
    moments = seen(given, False)
    assert moments.squares.dtype == torch.float64
    assert torch.allclose(
        moments.squares / (moments.seen - 1), torch.cat(given).double().var(0), rtol=1e-9
    )


def test_observing_leaves_what_was_seen_before_alone():
    before = seen(batches(2), False)
    copies = [value.clone() for value in before]
    observe(before, batches()[0])
    assert all(torch.equal(now, then) for now, then in zip(before, copies, strict=True))


@pytest.mark.parametrize("dense", [False, True])
def test_the_scale_squares_to_the_covariance_shrunk_by_five_draws_of_a_small_variance(dense):
    parts = batches(9)
    every = torch.cat(parts)
    n = len(every)
    scale = scale_of(seen(parts, dense), parts[0].float())
    assert scale.dtype == torch.float32
    cov = n / (n + 5) * (torch.cov(every.T) if dense else every.var(0))
    floor = 5 / (n + 5) * 1e-3
    square = scale.double() @ scale.double().T if dense else scale.double().square()
    assert torch.allclose(square, cov + floor * (torch.eye(3) if dense else 1.0), rtol=1e-5)
    if dense:
        assert torch.equal(scale, scale.tril()) and (scale.diagonal() > 0).all()


@pytest.mark.parametrize("dense", [False, True])
def test_few_draws_and_draws_without_spread_give_a_usable_scale(dense):
    """Fewer draws than parameters have a singular covariance; chains that never moved have none at
    all.
    """
    for parts in (
        batches(1, 2, 6),
        [torch.ones(1, 6, dtype=torch.float64)],
        [torch.ones(4, 6, dtype=torch.float64)] * 3,
    ):
        scale = scale_of(seen(parts, dense), parts[0])
        assert scale.isfinite().all()
        assert (torch.linalg.eigvalsh(scale @ scale.T).min() if dense else scale.min()) > 1e-6


def test_velocity_and_force_are_the_scale_and_its_transpose():
    tril = torch.linalg.cholesky(torch.cov(torch.cat(batches()).T))
    r, slope = batches()[0], batches()[1]
    assert torch.allclose(velocity(tril, r), torch.stack([tril @ each for each in r]))
    assert torch.allclose(force(tril, slope), torch.stack([tril.T @ each for each in slope]))
    scale = tril.diagonal().clone()
    assert torch.allclose(velocity(scale, r), velocity(torch.diag(scale), r))
    assert torch.allclose(force(scale, slope), force(torch.diag(scale), slope))
    # power: slope . velocity = force . momentum, whatever the metric, or energy is not conserved
    assert torch.allclose((slope * velocity(tril, r)).sum(-1), (force(tril, slope) * r).sum(-1))


def test_the_unit_scale_changes_nothing():
    r = batches()[0].float()
    for dense in (False, True):
        scale = unit(r, dense)
        assert (
            scale.dtype == torch.float32
            and torch.equal(velocity(scale, r), r)
            and torch.equal(force(scale, r), r)
        )


def test_a_dense_metric_of_too_many_parameters_is_refused():
    check_dense(MAX_DENSE)
    with pytest.raises(
        SettingError, match=f"mass='dense' over {MAX_DENSE + 1} parameters.*use 'diagonal'"
    ):
        check_dense(MAX_DENSE + 1)
