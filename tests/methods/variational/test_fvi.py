"""Tests of function-space variational inference."""

import pytest
import torch
from torch.distributions import Laplace

import credo
from credo.core.errors import SettingError
from credo.core.seeds import isolated


def clusters():
    x = torch.cat([torch.linspace(-2, -1, 20), torch.linspace(1, 2, 20)]).unsqueeze(1)
    return x, torch.sin(2 * x) + 0.1 * torch.randn(
        40, 1, generator=torch.Generator().manual_seed(0)
    )


def bnn(prior=None):
    with isolated(0):
        net = credo.nets.mlp(1, (30,), 1)
    return credo.BNN(
        net, credo.likelihoods.Gaussian(std=0.1), prior=prior or credo.priors.FanIn(2.0)
    )


def test_away_from_the_data_it_goes_back_to_the_process():
    given = {"epochs": 800, "batch_size": None, "lr": 0.02, "progress": False}
    weights = bnn().fit(clusters(), "vi", **given)
    functions = bnn().fit(clusters(), "fvi", function_prior="gp", length_scale=0.7, **given)
    far, near = torch.tensor([[-4.0], [4.0]]), torch.tensor([[-1.5], [1.5]])
    spread = {
        name: b.predict(far).epistemic.sqrt().mean()
        for name, b in (("vi", weights), ("fvi", functions))
    }
    assert spread["fvi"] > 1.3 * spread["vi"] and spread["fvi"] > 0.4
    assert float(functions.predict(near).epistemic.sqrt().max()) < 0.15


def test_the_history_has_the_divergence_of_functions():
    fitted = bnn().fit(clusters(), "fvi", epochs=3, progress=False)
    assert all(
        row["kl"] > 0 and row["elbo"] == pytest.approx(-row["nll"] - row["kl"])
        for row in fitted.history
    )


@pytest.mark.parametrize(
    ("settings", "prior", "message"),
    [
        ({"compile": True}, None, "fvi: compile=True is not supported"),
        ({}, Laplace(0.0, 1.0), "fvi needs a normal prior over weights"),
        ({}, "ard", "fvi needs a fixed prior"),
        ({"length_scale": 0.0}, None, "length_scale"),
        ({"num_outside": -1}, None, "outside"),
    ],
)
def test_what_it_cannot_do_is_refused_by_name(settings, prior, message):
    with pytest.raises(SettingError, match=message):
        bnn(prior).fit(clusters(), "fvi", epochs=1, progress=False, **settings)
