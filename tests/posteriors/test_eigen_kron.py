import pytest
import torch
from torch.distributions import MultivariateNormal
from zoo.families import MAKERS, values

from credo.core.seeds import Streams
from credo.posteriors import EigenKron
from credo.posteriors.jacobian import DenseDerivatives, FactoredDerivatives


def factors(rows=3, cols=4):
    """Two positive definite matrices with their eigenvalues and eigenvectors."""
    out = []
    for size in (rows, cols):
        root = torch.randn(
            size, size, generator=torch.Generator().manual_seed(size), dtype=torch.float64
        )
        out.append((root @ root.mT, *torch.linalg.eigh(root @ root.mT)))
    return out


def test_its_precision_is_a_kronecker_product_and_a_multiple_of_one():
    (b, b_values, q), (a, a_values, p) = factors()
    std = (torch.outer(b_values, a_values) + 0.3).rsqrt()
    family = EigenKron.of("w", values()["w"], q, p, std)
    precision = torch.kron(b, a) + 0.3 * torch.eye(12).double()
    torch.testing.assert_close(family.covariance().detach(), torch.linalg.inv(precision))
    normal = MultivariateNormal(values()["w"].reshape(-1), precision_matrix=precision)
    point = values(9)["w"]
    assert torch.allclose(family.log_prob({"w": point}), normal.log_prob(point.reshape(-1)))
    assert torch.allclose(family.entropy(), normal.entropy())
    torch.testing.assert_close(family.marginals()[1]["w"].detach(), normal.variance.reshape(3, 4))


@torch.no_grad()
@pytest.mark.parametrize("places", [1, 3])
def test_covariances_of_outputs_from_factors_and_written_out(places):
    family = MAKERS["eigen_kron"]()
    part = FactoredDerivatives(
        torch.randn(2, places, 4).double(), torch.randn(2, 5, places, 3).double()
    )
    dense = part.dense()
    expected = dense @ family.covariance() @ dense.mT
    for form in (part, DenseDerivatives(dense)):
        torch.testing.assert_close(family.output_covariance({"w": form}), expected)
        torch.testing.assert_close(
            family.output_variance({"w": form}), expected.diagonal(dim1=1, dim2=2)
        )


@pytest.mark.parametrize("shape", [(), (3,), (3, 2), (3, 2, 5, 5)])
def test_weights_with_any_number_of_axes(shape):
    value = torch.randn(shape)
    rows, cols = (shape[0], value[0].numel()) if shape else (1, 1)
    family = EigenKron.of(
        "w", value, torch.eye(rows), torch.eye(cols), torch.full((rows, cols), 0.5)
    )
    drawn = family.draw(Streams(0, range(4)))
    assert drawn["w"].shape == (4, *shape) and family.mean()["w"].shape == shape
    assert family.log_prob(drawn).shape == (4,)
    assert torch.allclose(family.marginals()[1]["w"], torch.full(shape, 0.25))


def test_it_is_for_one_parameter():
    with pytest.raises(ValueError, match=r"one parameter, got \['w', 'b'\]"):
        EigenKron({"w": (3, 4), "b": (3,)})
