"""The prior at the mode: precision, offset, and the density that is left over."""

import math

import pytest
import torch
from torch import nn
from torch.distributions import Laplace, Normal, StudentT
from zoo.curvature import make_sweep
from zoo.models import make_model
from zoo.regression import problem

from credo.core.errors import SettingError
from credo.curvature.log_evidence import elementwise_prior, log_evidence, prior_at_mode
from credo.curvature.structures import STRUCTURES, Measured
from credo.likelihoods import Gaussian
from credo.posteriors import Delta, Full, MeanField, Posterior, PosteriorPrior
from credo.priors import FanIn, Flat, Scaled


def model_with(prior, dtype=torch.float64, random="all"):
    torch.manual_seed(0)
    return make_model(nn.Linear(4, 3).to(dtype), random, prior=prior)


def test_a_normal_is_its_precision_and_mean():
    model = model_with({"weight": Normal(0.5, 2.0), "bias": Normal(-1.0, 0.5)}, torch.float32)
    values = model.values()
    found = elementwise_prior(model, values)
    assert {n: float(p) for n, p in found.precision.items()} == {
        "weight": 0.25,
        "bias": 4.0,
    } and found.shift == 0.0
    torch.testing.assert_close(found.offset["weight"], values["weight"].double() - 0.5)
    torch.testing.assert_close(found.offset["bias"], values["bias"].double() + 1.0)
    assert all(
        t.dtype == torch.float64 for t in (*found.precision.values(), *found.offset.values())
    )


def test_widths_by_fan_in_and_by_weight():
    model = model_with(FanIn(std=3.0))
    assert float(elementwise_prior(model, model.values()).precision["weight"]) == pytest.approx(
        4 / 9
    )
    family = MeanField.start(model.values(), 0.5)
    model.prior = PosteriorPrior(Posterior([family, Delta.start({"other": torch.zeros(1)})]))
    found = elementwise_prior(model, model.values())
    assert found.precision["weight"].shape == (3, 4) and torch.allclose(
        found.precision["weight"], torch.tensor(4.0).double()
    )
    assert not bool(found.offset["weight"].any())


def test_only_random_parameters_count():
    model = model_with(Normal(0.0, 1.0), random="weight")
    assert list(elementwise_prior(model, model.values()).precision) == ["weight"]


def test_a_tuned_prior_with_and_without_its_factors():
    model = model_with(Normal(0.0, 2.0))
    model.prior = Scaled(model.prior).fresh(model.sites)
    model.prior.set({"weight": torch.tensor(math.log(8.0), dtype=torch.float64)})
    found = [
        float(elementwise_prior(model, model.values(), untuned=untuned).precision["bias"])
        for untuned in (False, True)
    ]
    assert found == pytest.approx([2.0, 0.25])


def test_another_density_counts_by_its_curvature():
    """-d^2 log p and the Newton step to its mode; with the shift it is log p itself at this
    place.
    """
    prior = StudentT(torch.tensor(5.0).double(), 0.3, 1.5)
    model = model_with(prior)
    values = model.values()
    found = elementwise_prior(model, values)
    w = values["weight"]
    slope = -(6.0 * (w - 0.3)) / (5.0 * 1.5**2 + (w - 0.3) ** 2)
    curve = 6.0 * (5.0 * 1.5**2 - (w - 0.3) ** 2) / (5.0 * 1.5**2 + (w - 0.3) ** 2) ** 2
    tolerance = {"rtol": 1e-6, "atol": 1e-8}  # torch keeps 0.3 in single precision
    torch.testing.assert_close(found.precision["weight"], curve, **tolerance)
    torch.testing.assert_close(found.offset["weight"], -slope / curve, **tolerance)
    surrogate = sum(
        float(Normal(0.0, found.precision[n].rsqrt()).log_prob(found.offset[n]).sum())
        for n in found.offset
    )
    assert surrogate + found.shift == pytest.approx(
        sum(float(prior.log_prob(v).sum()) for v in values.values())
    )


def test_single_weights_alone():
    """Their precision, offset and share of the shift; one number where all weights of a parameter
    have the same.
    """
    places = {"weight": torch.tensor([1, 10])}
    for prior in (
        Normal(0.5, 2.0),
        Normal(torch.zeros(3, 4), 1 + torch.rand(3, 4)),
        StudentT(torch.tensor(5.0).double(), 0.3, 1.5),
    ):
        model = model_with({"weight": prior, "bias": Normal(0.0, 1.0)})
        whole, some = (
            elementwise_prior(model, model.values()),
            elementwise_prior(model, model.values(), places=places),
        )
        assert list(some.precision) == ["weight"]
        torch.testing.assert_close(
            some.offset["weight"], whole.offset["weight"].reshape(-1)[places["weight"]]
        )
        expected = whole.precision["weight"].reshape(-1)
        torch.testing.assert_close(
            some.precision["weight"].reshape(-1),
            expected[places["weight"]] if len(expected) > 1 else expected,
        )
        w = model.values()["weight"].reshape(-1)[places["weight"]]
        if isinstance(prior, StudentT):
            normal = (
                Normal(0.0, some.precision["weight"].rsqrt()).log_prob(some.offset["weight"]).sum()
            )
            assert float(normal) + some.shift == pytest.approx(float(prior.log_prob(w).sum()))
        else:
            assert some.shift == 0.0


def test_a_weight_that_is_not_chosen_is_not_refused():
    model = model_with(StudentT(2.0, 0.0, 1.0))
    values = model.values() | {"weight": torch.tensor([[0.1, 5.0, 0.2, 7.0]] * 3).double()}
    with pytest.raises(SettingError, match="curves downwards at the mode"):
        elementwise_prior(model, values, places={"weight": torch.tensor([1])})
    assert bool(
        (
            elementwise_prior(model, values, places={"weight": torch.tensor([0, 2])}).precision[
                "weight"
            ]
            > 0
        ).all()
    )


@pytest.mark.parametrize("prior", [Laplace(0.0, 1.0), Flat(), StudentT(2.0, 0.0, 1e-3)], ids=str)
def test_priors_that_do_not_curve_downwards_are_refused_by_name(prior):
    """A double exponential has no curvature, a flat one neither, and a heavy tail has it
    upwards.
    """
    model = model_with(prior)
    name = type(prior).__name__
    with pytest.raises(
        SettingError,
        match=f"curves downwards at the mode, but 'weight' has {name}.*; use a normal prior",
    ):
        elementwise_prior(model, model.values())


def linear_model(likelihood=None, prior=None, outputs=1):
    torch.manual_seed(0)
    net = nn.Linear(3, outputs).double()
    return make_model(
        net, likelihood=likelihood or Gaussian(std=0.5), prior=prior or Normal(0.0, 1.0)
    )


def earlier_full(model, scale=1.0):
    torch.manual_seed(3)
    values = {n: torch.randn_like(v) for n, v in model.values().items()}
    numel = sum(v.numel() for v in values.values())
    root = torch.randn(numel, numel).double()
    cover = scale * (root @ root.mT / numel + torch.eye(numel).double())
    family = Full({n: v.shape for n, v in values.items()}, "float64")
    return family.set(family.layout.join(values), torch.linalg.cholesky(cover)), cover


def test_a_joint_prior_counts_whole():
    """Posterior precision H + P0, and the evidence with log N(w; m0, P0^-1)."""
    x, y, _ = problem()
    model = linear_model()
    family, cover = earlier_full(model)
    model.prior = PosteriorPrior(Posterior([family]))
    sweep = make_sweep(model.net, x, y, Gaussian(std=0.5))
    measured, values = STRUCTURES["full"].measure(sweep, 0), model.values()
    curve = measured.blocks[0].matrix.clone()
    prior = prior_at_mode(model, values, measured)
    posterior = measured.posterior(model, values, prior.precision)
    total = curve + torch.linalg.inv(cover)
    torch.testing.assert_close(posterior.factors[0].covariance().detach(), torch.linalg.inv(total))
    log_prior = family.log_prob(values).detach()
    expected = (
        -measured.nll
        + log_prior
        + 0.5 * len(total) * math.log(2 * math.pi)
        - 0.5 * torch.logdet(total)
    )
    assert float(log_evidence(measured.blocks, measured.nll, prior)) == pytest.approx(
        float(expected), rel=1e-9
    )


def test_a_joint_prior_beside_a_rounded_curvature():
    """Only the curvature is mended, never the prior's part, which alone is not positive
    definite.
    """
    model = linear_model()
    family, cover = earlier_full(model, 1e-2)
    model.prior = PosteriorPrior(Posterior([family]))
    x, y, _ = problem()
    blocks = STRUCTURES["full"].measure(make_sweep(model.net, x, y, Gaussian(std=0.5)), 0).blocks
    blocks[0].matrix = torch.diag(torch.tensor([1e9, 0.0, 0.0, -200.0])).double()
    prior = prior_at_mode(model, model.values(), Measured(blocks, 0.0))
    expected = torch.diag(torch.tensor([1e9, 0.0, 0.0, 0.0])).double() + torch.linalg.inv(cover)
    torch.testing.assert_close(blocks[0].log_det(prior.precision), torch.logdet(expected))


def test_an_independent_prior_counts_by_weight():
    model = linear_model()
    family = MeanField.start(model.values(), 0.5)
    model.prior = PosteriorPrior(Posterior([family]))
    prior = prior_at_mode(model, model.values(), Measured([], 0.0))
    assert prior.precision["weight"].shape == (1, 3) and torch.allclose(
        prior.precision["bias"], torch.tensor(4.0).double()
    )


def test_a_joint_prior_over_other_parameters_is_refused():
    model = linear_model()
    model.prior = PosteriorPrior(Posterior([Full.start({"weight": model.values()["weight"]})]))
    x, y, _ = problem()
    blocks = STRUCTURES["full"].measure(make_sweep(model.net, x, y, Gaussian(std=0.5)), 0).blocks
    with pytest.raises(
        SettingError,
        match="an earlier posterior over the same parameters; this one is 'full' over weight",
    ):
        prior_at_mode(model, model.values(), Measured(blocks, 0.0))
