"""A full covariance over single weights against dense matrices; what every family keeps is in
test_family.
"""

import pytest
import torch
from torch.distributions import MultivariateNormal, Normal, StudentT
from zoo.families import MAKERS, SHAPES, flat, values
from zoo.stats import has_mean, has_variance

from credo.core.errors import CredoError
from credo.core.seeds import Streams
from credo.core.sites import sites_of
from credo.posteriors import Full, Posterior, PosteriorPrior, Subnetwork, sampled_kl
from credo.posteriors.jacobian import Rows, Whole
from credo.posteriors.subnetwork import Pinned
from credo.priors import Factorised

CHOSEN = torch.tensor(
    [1, 4, 7, 11, 14]
)  # of the fifteen numbers in a row, as the zoo's member has them


def root(size=5):
    return torch.linalg.cholesky(
        torch.cov(torch.randn(size, 40, generator=torch.Generator().manual_seed(0)).double())
    )


@torch.no_grad()
def test_the_chosen_weights_are_jointly_gaussian_and_the_others_points():
    family = MAKERS["subnetwork"]()
    normal = MultivariateNormal(flat(values())[CHOSEN], family.covariance())
    point = values(9)
    assert torch.allclose(family.log_prob(point), normal.log_prob(flat(point)[CHOSEN]))
    assert torch.allclose(family.entropy(), normal.entropy())
    var = flat(family.marginals()[1])
    torch.testing.assert_close(var[CHOSEN], normal.variance)
    others = torch.ones(15, dtype=torch.bool).index_fill(0, CHOSEN, False)
    assert not bool(var[others].any())
    draws = flat(family.draw(Streams(0, range(7))))
    assert torch.equal(draws[:, others], flat(values())[others].expand(7, 10))
    assert all(len(column.unique()) == 7 for column in draws[:, CHOSEN].mT)


@torch.no_grad()
def test_with_all_weights_chosen_it_is_the_full_family():
    everything = {name: torch.arange(shape.numel()) for name, shape in SHAPES.items()}
    tril = root(15)
    family, full = (
        Subnetwork.of(values(), everything, tril),
        Full(SHAPES, "float64").set(flat(values()), tril),
    )
    for one, other in zip(
        family.draw(Streams(3, range(4))).values(),
        full.draw(Streams(3, range(4))).values(),
        strict=True,
    ):
        assert torch.equal(one, other)
    assert torch.equal(family.entropy(), full.entropy()) and torch.equal(
        family.log_prob(values(1)), full.log_prob(values(1))
    )
    prior = Factorised(dict.fromkeys(SHAPES, Normal(0.1, 1.5)), SHAPES)
    torch.testing.assert_close(family.kl(prior), full.kl(prior))
    assert family.restrict(prior.elementwise["w"], "w") is prior.elementwise["w"]


@torch.no_grad()
def test_a_parameter_without_chosen_weights_is_fixed():
    family = Subnetwork.of(values(), {"b": torch.tensor([0, 2])}, root(2))
    assert family.fixed == {"w"} and family.varying == 2 and family.chosen == {"b": 2}
    drawn = family.draw(Streams(0, range(3)))["w"]
    assert torch.equal(drawn, values()["w"].expand(3, 3, 4)) and drawn.stride()[0] == 0  # no copies
    assert family.written("w", None) == 0


@torch.no_grad()
@pytest.mark.parametrize("places", [1, 3])
def test_covariances_of_outputs_from_factors_and_written_out(places):
    """By the chosen columns alone, however the derivatives come."""
    family = MAKERS["subnetwork"]()
    weight = Rows(torch.randn(2, places, 4).double(), torch.randn(2, 5, places, 3).double())
    bias = Rows(torch.ones(2, 1, 1).double(), weight.grads.sum(2, keepdim=True))
    dense = torch.cat([weight.dense(), bias.dense()], -1)[..., CHOSEN]
    expected = dense @ family.covariance() @ dense.mT
    for jacobian in (
        {"w": weight, "b": bias},
        {"w": Whole(weight.dense()), "b": Whole(bias.dense())},
    ):
        torch.testing.assert_close(family.output_covariance(jacobian), expected)
        torch.testing.assert_close(
            family.output_variance(jacobian), expected.diagonal(dim1=1, dim2=2)
        )


def test_what_is_written_out_of_a_derivative_is_counted():
    family = MAKERS["subnetwork"]()
    assert family.written("w", 1) == 8  # four columns, each a product of two numbers
    assert (
        family.written("w", 2) == 12 and family.written("w", 9) == 16
    )  # at many places the whole matrix is smaller
    assert family.written("b", None) == 4


@torch.no_grad()
def test_shapes_without_axes_and_several_types():
    params = {"s": torch.tensor(2.0), "w": torch.randn(2, 3).double(), "v": torch.randn(3)}
    family = Subnetwork.of(
        params, {"s": torch.tensor([0]), "w": torch.tensor([5])}, torch.eye(2).double()
    )
    draws = family.draw(Streams(0, range(4)))
    assert {n: (d.dtype, d.shape) for n, d in draws.items()} == {
        n: (v.dtype, (4, *v.shape)) for n, v in params.items()
    }
    assert family.inside.flat_mean.dtype == torch.float64 and family.log_prob(draws).shape == (4,)
    again = Subnetwork.from_config(family.config())
    again.load_state_dict(family.state_dict())
    assert all(torch.equal(v, draws[n]) for n, v in again.draw(Streams(0, range(4))).items())


def test_the_prior_of_a_point_does_not_count():
    family, base = MAKERS["subnetwork"](), Normal(torch.tensor(0.3).double(), 2.0)
    prior = family.restrict(base, "w")
    assert isinstance(prior, Pinned)
    point = values(9)["w"]
    expected = base.log_prob(point.reshape(-1)[CHOSEN[:4]]).sum()
    assert torch.allclose(prior.log_prob(point).sum(), expected)
    torch.manual_seed(0)
    draws = prior.sample((20_000,))
    mask = torch.zeros(12, dtype=torch.bool).index_fill(0, CHOSEN[:4], True).reshape(3, 4)
    has_mean(draws[:, mask], torch.full((4,), 0.3))
    has_variance(draws[:, mask], torch.full((4,), 4.0))
    assert torch.equal(draws[:, ~mask], values()["w"][~mask].expand(20_000, 8))
    each = Normal(torch.zeros(3, 4).double(), torch.rand(3, 4).double() + 0.5)
    assert family.restrict(each, "w").sample((2,)).shape == (2, 3, 4)


@torch.no_grad()
def test_a_prior_without_a_closed_form_is_sampled():
    family = MAKERS["subnetwork"]()
    parts = {n: family.restrict(StudentT(torch.tensor(4.0).double()), n) for n in SHAPES}
    prior = Factorised(parts, SHAPES)
    assert family.kl(prior) is None and sampled_kl(family, prior, Streams(0, range(5))).shape == (
        5,
    )


def test_it_is_no_prior_of_another_fit():
    """It says nothing of the points, which another fit may move."""
    sites = sites_of(torch.nn.Linear(4, 3).double())
    named = {"weight": values()["w"], "bias": values()["b"]}
    prior = PosteriorPrior(
        Posterior([Subnetwork.of(named, {"bias": torch.tensor([1])}, torch.eye(1).double())])
    )
    assert prior.joint_over(tuple(named)) is None
    with pytest.raises(
        CredoError,
        match="'weight' has no elementwise prior: the earlier posterior is 'subnetwork' over",
    ):
        prior.at(sites["weight"])
