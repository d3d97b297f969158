"""The prior at the mode: precision, offset, and the density that is left over."""

import math

import pytest
import torch
from torch import nn
from torch.distributions import Laplace, Normal, StudentT
from zoo.models import make_model

from credo.core.errors import SettingError
from credo.curvature.centred_prior import centred
from credo.posteriors import Delta, MeanField, Posterior, PosteriorPrior
from credo.priors import FanIn, Flat, Scaled


def model_with(prior, dtype=torch.float64, random="all"):
    torch.manual_seed(0)
    return make_model(nn.Linear(4, 3).to(dtype), random, prior=prior)


def test_a_normal_is_its_precision_and_mean():
    model = model_with({"weight": Normal(0.5, 2.0), "bias": Normal(-1.0, 0.5)}, torch.float32)
    values = model.values()
    found = centred(model, values)
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
    assert float(centred(model, model.values()).precision["weight"]) == pytest.approx(4 / 9)
    family = MeanField.start(model.values(), 0.5)
    model.prior = PosteriorPrior(Posterior([family, Delta.start({"other": torch.zeros(1)})]))
    found = centred(model, model.values())
    assert found.precision["weight"].shape == (3, 4) and torch.allclose(
        found.precision["weight"], torch.tensor(4.0).double()
    )
    assert not bool(found.offset["weight"].any())


def test_only_random_parameters_count():
    model = model_with(Normal(0.0, 1.0), random="weight")
    assert list(centred(model, model.values()).precision) == ["weight"]


def test_a_tuned_prior_with_and_without_its_factors():
    model = model_with(Normal(0.0, 2.0))
    model.prior = Scaled(model.prior).fresh(model.sites)
    model.prior.set({"weight": torch.tensor(math.log(8.0), dtype=torch.float64)})
    found = [
        float(centred(model, model.values(), base=base).precision["bias"]) for base in (False, True)
    ]
    assert found == pytest.approx([2.0, 0.25])


def test_another_density_counts_by_its_curvature():
    """-d^2 log p and the Newton step to its mode; with the shift it is log p itself at this
    place.
    """
    prior = StudentT(torch.tensor(5.0).double(), 0.3, 1.5)
    model = model_with(prior)
    values = model.values()
    found = centred(model, values)
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
        whole, some = centred(model, model.values()), centred(model, model.values(), places=places)
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
        centred(model, values, places={"weight": torch.tensor([1])})
    assert bool(
        (
            centred(model, values, places={"weight": torch.tensor([0, 2])}).precision["weight"] > 0
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
        centred(model, model.values())
