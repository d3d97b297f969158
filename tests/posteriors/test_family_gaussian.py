"""What jointly Gaussian families share."""

import pytest
import torch
from scipy.stats import chi2
from torch.distributions import MultivariateNormal
from zoo.families import GAUSSIAN, MAKERS, flat
from zoo.stats import follows, has_covariance, has_mean, has_variance

from credo.core.seeds import Streams
from credo.posteriors import Gaussian
from credo.posteriors.family import gaussian_entropy
from credo.posteriors.jacobian import DenseDerivatives

DRAWS = 20_000


@pytest.fixture(params=GAUSSIAN)
def gaussian(request):
    return MAKERS[request.param]()


@pytest.fixture(params=list(MAKERS))
def family(request):
    return MAKERS[request.param]()


@torch.no_grad()
def test_draws_have_the_marginals_mean_and_variance(gaussian):
    draws = gaussian.draw(Streams(0, range(DRAWS)))
    mean, var = gaussian.marginals()
    for name, shape in gaussian.shapes.items():
        assert draws[name].shape == (DRAWS, *shape)
        has_mean(draws[name], mean[name])
        has_variance(draws[name], var[name])


@torch.no_grad()
def test_mahalanobis_distances_of_draws_follow_chi_squared(gaussian):
    """log q(w) = log q(mean) - d^2 / 2 with d^2 ~ chi^2(P): density and sampler agree in every
    direction at once.
    """
    distances = 2 * (
        gaussian.log_prob(gaussian.mean())
        - gaussian.log_prob(gaussian.draw(Streams(2, range(4000))))
    )
    follows(distances, chi2(gaussian.varying).cdf)


@torch.no_grad()
def test_the_density_is_normalised(gaussian):
    """At its mode a Gaussian's log density is -log det L - P/2 log 2 pi, which ties it to the
    entropy.
    """
    peak = gaussian.log_prob(gaussian.mean())
    assert torch.allclose(gaussian.entropy(), -peak + gaussian.varying / 2, rtol=1e-12)


@torch.no_grad()
def test_entropy_is_the_mean_of_minus_log_density(gaussian):
    values = -gaussian.log_prob(gaussian.draw(Streams(3, range(DRAWS))))
    has_mean(values, gaussian.entropy())


def test_gradients_reach_every_number_of_a_draw(gaussian):
    sum((t**2).sum() for t in gaussian.draw(Streams(0)).values()).backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in gaussian.parameters())


@torch.no_grad()
def test_times_root_is_by_a_root_of_the_covariance_of_linear_functions(gaussian):
    """J R R^T J^T against draws, and by ``output_covariance`` and ``output_variance``."""
    rows = torch.randn(2, 3, numel(gaussian)).double()
    cover = gaussian.times_root(rows) @ gaussian.times_root(rows).mT
    draws = flat(gaussian.draw(Streams(8, range(DRAWS)))) @ rows.flatten(0, 1).mT
    for place in range(2):
        has_covariance(draws[:, 3 * place : 3 * place + 3], cover[place])
    pieces = rows.split([shape.numel() for shape in gaussian.shapes.values()], -1)
    jacobian = {
        name: DenseDerivatives(piece) for name, piece in zip(gaussian.names, pieces, strict=True)
    }
    torch.testing.assert_close(gaussian.output_covariance(jacobian), cover)
    torch.testing.assert_close(gaussian.output_variance(jacobian), cover.diagonal(dim1=-2, dim2=-1))


def numel(family):
    return sum(shape.numel() for shape in family.shapes.values())


def test_gaussian_entropy_against_torch():
    normal = MultivariateNormal(
        torch.zeros(3), scale_tril=torch.diag(torch.tensor([0.5, 2.0, 3.0]))
    )
    assert torch.allclose(gaussian_entropy(torch.tensor(3.0).log(), 3), normal.entropy())


@torch.no_grad()
@pytest.mark.parametrize("kind", ["low_rank", "full", "kron", "eigen_kron", "low_rank_precision"])
def test_covariances_between_weights_match_draws(kind):
    family = MAKERS[kind]()
    draws = flat(family.draw(Streams(6, range(DRAWS))))
    has_covariance(draws, dense_covariance(family))


def dense_covariance(family):
    if family.name in ("full", "eigen_kron"):
        return family.covariance()
    if family.name == "low_rank":
        return family.distribution().covariance_matrix
    if family.name == "low_rank_precision":
        root = family.log_std.exp().diag() @ (
            torch.eye(15).double() + family.basis * family._shrink() @ family.basis.mT
        )
        return root @ root.mT
    rows, cols = family.row_factor(), family.col_factor()
    grid = torch.kron(rows @ rows.mT, cols @ cols.mT)  # over (output, input + bias), row by row
    index = torch.arange(15).reshape(3, 5)
    order = torch.cat([index[:, :4].reshape(-1), index[:, 4]])
    return grid[order][:, order]


def test_families_say_whether_they_are_gaussian(family):
    """Jointly Gaussian families answer with themselves, all others with None."""
    assert family.as_gaussian() is (family if isinstance(family, Gaussian) else None)
