"""KL in closed form against draws, against quadrature, and the posterior as a prior."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm
from torch.distributions import Laplace, Normal, StudentT
from zoo.families import GAUSSIAN, MAKERS, SHAPES, values
from zoo.models import make_model
from zoo.stats import has_mean

from credo.core.errors import CredoError, SettingError
from credo.core.seeds import Streams
from credo.posteriors import Delta, Posterior, PosteriorPrior, kl, sampled_kl
from credo.priors import Factorised, FanIn, Flat, as_prior, scale_mixture
from credo.priors.base import distribution_on

SITES = make_model(torch.nn.Linear(4, 3).double()).sites
SITES = {
    "w": replace(SITES["weight"], name="w"),
    "b": replace(SITES["bias"], name="b", partner="w"),
}


def prior(kind, family):
    if kind.startswith("earlier"):
        earlier = Posterior([MAKERS[kind.split()[1]]()])
        for parameter in earlier.parameters():
            parameter.data += 0.1
        return family.prior_from(PosteriorPrior(earlier), SITES)
    spec = {
        "normal": Normal(0.2, 1.5),
        "fan_in": FanIn(),
        "laplace": Laplace(-0.1, 0.8),
        "flat": Flat(),
    }[kind]
    return family.prior_from(as_prior(spec), SITES)


CLOSED = [
    (family, p)
    for family in GAUSSIAN
    for p in ("normal", "fan_in", "laplace", "flat", "earlier mean_field")
]


@torch.no_grad()
@pytest.mark.parametrize(("name", "kind"), [*CLOSED, ("full", "earlier full")])
def test_closed_forms_equal_the_mean_over_draws(name, kind):
    family = MAKERS[name]()
    p = prior(kind, family)
    closed = family.kl(p)
    assert closed is not None
    has_mean(sampled_kl(family, p, Streams(0, range(20_000))), closed)


@torch.no_grad()
def test_kl_of_a_family_to_itself_is_zero():
    for name in GAUSSIAN:
        family = MAKERS[name]()
        assert torch.allclose(
            sampled_kl(family, family, Streams(0, range(10))), torch.zeros(10).double(), atol=1e-10
        )
    full = MAKERS["full"]()
    assert abs(float(full.kl(full))) < 1e-10


def test_two_full_posteriors_with_parameters_in_another_order():
    """The flat vectors are ordered by name lists; a closed form over misaligned vectors would be
    silently wrong.
    """
    family = MAKERS["full"]()
    swapped = type(family).start({n: values()[n] for n in ("b", "w")}, 0.4)
    with torch.no_grad():
        closed = kl(family, swapped, Streams(0, range(20_000)))
        has_mean(
            sampled_kl(family, swapped, Streams(1, range(20_000))), closed, z=7.1
        )  # both sides are sampled: 5 sqrt(2)


def quadrature(mean, std, log_density, breaks=()):
    def integrand(w):
        return norm.pdf(w, mean, std) * (norm.logpdf(w, mean, std) - log_density(w))

    return quad(integrand, mean - 12 * std, mean + 12 * std, points=breaks or None, limit=400)[0]


@torch.no_grad()
@pytest.mark.parametrize("spec", [StudentT(3.0, 0.1, 0.7), scale_mixture(0.25, 1.0, 0.05)])
def test_priors_without_a_closed_form_are_sampled_right(spec):
    """Against quadrature, weight by weight."""
    family = MAKERS["mean_field"]()
    p = family.prior_from(as_prior(spec), SITES)
    assert family.kl(p) is None
    mean, var = family.marginals()
    exact_density = distribution_on(spec, torch.float64, torch.device("cpu"))
    exact = sum(
        quadrature(
            float(m),
            float(v) ** 0.5,
            lambda w: float(exact_density.log_prob(torch.tensor(w, dtype=torch.float64))),
            (0.0,) if abs(m) < 12 * v**0.5 else (),
        )
        for name in SHAPES
        for m, v in zip(mean[name].flatten(), var[name].flatten(), strict=True)
    )
    draws = sampled_kl(family, p, Streams(0, range(20_000)))
    has_mean(draws, exact)
    assert torch.allclose(kl(family, p, Streams(0, range(20_000))), draws.mean())


def test_the_sampled_kl_has_gradients():
    family = MAKERS["mean_field"]()
    kl(family, family.prior_from(as_prior(StudentT(3.0)), SITES), Streams(0, range(5))).backward()
    assert family.flat_mean.grad.abs().max() > 0 and family.raw_std.grad.abs().max() > 0


@torch.no_grad()
def test_mixtures_and_low_rank_earlier_posteriors_are_sampled():
    for name, earlier in (
        ("mixture", "normal"),
        ("low_rank", "earlier low_rank"),
        ("kron", "earlier kron"),
        ("full", "earlier low_rank"),
    ):
        family = MAKERS[name]()
        p = prior(earlier, family)
        assert family.kl(p) is None
        assert float(kl(family, p, Streams(0, range(2000)))) > 0


def test_a_points_kl_is_minus_the_log_prior():
    family = Delta.start(values())
    p = prior("normal", family)
    expected = -sum(norm.logpdf(v.numpy(), 0.2, 1.5).sum() for v in values().values())
    assert np.isclose(
        kl(family, p).item(), expected, rtol=1e-6
    )  # the prior's numbers were given in single precision


def test_no_kl_names_both_sides():
    with pytest.raises(CredoError, match="No KL between the family 'samples' and the prior"):
        kl(MAKERS["samples"](), prior("normal", MAKERS["mean_field"]()))


def test_a_posterior_as_prior_is_taken_elementwise_or_as_a_whole():
    mean_field = Posterior([MAKERS["mean_field"]()])
    at = PosteriorPrior(mean_field).at(SITES["w"])
    assert torch.equal(at.loc, mean_field.mean()["w"]) and at.batch_shape == (3, 4)
    full = Posterior([MAKERS["full"]()])
    assert MAKERS["mean_field"]().prior_from(PosteriorPrior(full), SITES) is full.factors[0]
    with pytest.raises(CredoError, match="'w' has no elementwise prior"):
        PosteriorPrior(full).at(SITES["w"])
    with pytest.raises(CredoError, match="does not cover 'w'; it covers p"):
        PosteriorPrior(Posterior([Delta.start({"p": torch.ones(1)})])).at(SITES["w"])
    assert PosteriorPrior(full).describe() == "posterior: full"


def test_factorised_priors_sum_over_elements_and_sample():
    p = Factorised({"w": Normal(0.0, 1.0), "b": Normal(torch.zeros(3), torch.ones(3))}, SHAPES)
    params = {n: v.float().expand(6, *v.shape) for n, v in values().items()}
    assert p.log_prob(params).shape == (6,)
    expected = sum(norm.logpdf(v.numpy()).sum() for v in values().values())
    assert np.isclose(float(p.log_prob(params)[0]), expected, rtol=1e-5)
    drawn = p.sample(5, values())
    assert (
        drawn["w"].shape == (5, 3, 4)
        and drawn["b"].shape == (5, 3)
        and drawn["w"].dtype == torch.float64
    )


def test_an_elementwise_prior_is_normal_if_it_is_so_for_every_parameter():
    shapes = {"a": torch.Size([2, 3]), "b": torch.Size([])}
    normal = Factorised({"a": Normal(0.0, torch.ones(3)), "b": Normal(1.0, 2.0)}, shapes)
    found = normal.independent_normals()
    assert found is not None and {n: d.loc.shape for n, d in found.items()} == shapes
    assert found["b"].loc == 1.0 and found["b"].scale == 2.0
    mixed = Factorised({"a": Normal(0.0, 1.0), "b": Laplace(0.0, 1.0)}, shapes)
    assert mixed.independent_normals() is None


def test_a_prior_says_which_posterior_it_was():
    posterior = Posterior([MAKERS["full"]()])
    assert PosteriorPrior(posterior).earlier_posterior is posterior
    assert as_prior(Normal(0.0, 1.0)).earlier_posterior is None


def test_the_joint_density_of_an_earlier_posterior_is_the_sum_of_its_families():
    full = MAKERS["full"]()
    params = full.draw(Streams(0, range(3)))
    log_prob = PosteriorPrior(Posterior([full])).joint_log_prob(list(SHAPES))
    assert torch.equal(log_prob(params), full.log_prob(params))
    with pytest.raises(SettingError, match="no density over the same parameters; fit with 'vi'"):
        PosteriorPrior(Posterior([full])).joint_log_prob([*SHAPES, "another"])
    with pytest.raises(SettingError, match="no density over the same parameters"):
        PosteriorPrior(Posterior([Delta.start(values())])).joint_log_prob(list(SHAPES))
