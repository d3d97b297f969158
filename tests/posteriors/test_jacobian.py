"""Factors of derivatives against the derivatives written out."""

import pytest
import torch

from credo.posteriors.jacobian import (
    DenseDerivatives,
    FactoredDerivatives,
    independent_covariance,
    independent_variance,
    joined,
)

N, K, O, I = 3, 2, 4, 5  # noqa: E741


def rows(places):
    return FactoredDerivatives(
        torch.randn(N, places, I).double(), torch.randn(N, K, places, O).double()
    )


def by_hand(part):
    """sum_r g_kr a_r^T, by loops."""
    out = torch.zeros(N, K, O, I).double()
    for n in range(N):
        for k in range(K):
            for r in range(part.inputs.shape[1]):
                out[n, k] += torch.outer(part.grads[n, k, r], part.inputs[n, r])
    return out.flatten(2)


@pytest.mark.parametrize("places", [1, 6])
def test_dense_is_the_sum_over_places(places):
    part = rows(places)
    torch.testing.assert_close(part.dense(), by_hand(part))


@pytest.mark.parametrize("places", [1, 6])
def test_independent_weights_by_factors_and_written_out(places):
    part, var = rows(places), torch.rand(O, I).double()
    expected = torch.einsum("nkp,p,nlp->nkl", by_hand(part), var.reshape(-1), by_hand(part))
    for form in (part, DenseDerivatives(by_hand(part))):
        torch.testing.assert_close(independent_covariance(form, var), expected)
        torch.testing.assert_close(
            independent_variance(form, var), expected.diagonal(dim1=1, dim2=2)
        )


def test_a_convolutions_variances_have_more_axes_than_its_matrix():
    part, var = rows(1), torch.rand(O, 1, I, 1).double()
    torch.testing.assert_close(
        independent_variance(part, var), independent_variance(part, var.reshape(O, I))
    )


@pytest.mark.parametrize("places", [1, 6])
def test_turned_factors_are_derivatives_by_other_coordinates(places):
    """W = Q V P^T, so d f / d V = Q^T (d f / d W) P."""
    part = rows(places)
    out, inner = torch.randn(O, O).double(), torch.randn(I, I).double()
    expected = out.mT @ by_hand(part).unflatten(-1, (O, I)) @ inner
    torch.testing.assert_close(part.turned(out, inner).dense(), expected.flatten(2))


def test_parameters_side_by_side_in_the_order_asked_for():
    jacobian = {"w": rows(1), "b": DenseDerivatives(torch.randn(N, K, O).double())}
    both = joined(jacobian, ("b", "w"))
    assert torch.equal(both[..., :O], jacobian["b"].values) and torch.equal(
        both[..., O:], jacobian["w"].dense()
    )


@pytest.mark.parametrize("places", [1, 6])
@pytest.mark.parametrize("chosen", [[3], [0, 7, 19], list(range(20))])
def test_single_weights_are_columns_of_the_derivatives(places, chosen):
    part, at = rows(places), torch.tensor(chosen)
    for form in (part, DenseDerivatives(by_hand(part))):
        torch.testing.assert_close(form.at(at), by_hand(part)[..., at])


def test_other_precisions():
    for part in (rows(2), DenseDerivatives(torch.randn(N, K, O).double())):
        assert part.to(torch.float32).dense().dtype == torch.float32
