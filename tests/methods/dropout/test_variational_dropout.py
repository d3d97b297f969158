"""Gaussian noise of learned size as a user meets it."""

import pytest
import torch
from torch import nn
from zoo.dropout import NETWORKS, make

import credo
from credo import BNN
from credo.core.errors import SettingError
from credo.core.seeds import generator
from credo.likelihoods import Gaussian
from credo.methods import methods

Y = torch.tensor([[0.5, -1.0], [1.0, 0.3], [-0.7, 0.1]], dtype=torch.float64)


def fit(net, x, y=Y, std=0.5, **how):
    settings = {"epochs": 3, "lr": 0.01, "progress": False} | how
    return BNN(net, Gaussian(std=std)).fit((x, y), "variational_dropout", **settings)


@pytest.mark.parametrize("name", sorted(NETWORKS.keys() - {"functional"}))
def test_every_network_fits_predicts_with_spread_and_saves(name, tmp_path):
    net, x = make(name)
    fitted = fit(net, x)
    outputs = fitted.predict(x, 10).outputs
    assert float(outputs.std(0).min()) > 0 and any(
        key.startswith("rate/") for key in fitted.history[-1]
    )
    fitted.save(tmp_path / "model")
    assert torch.equal(credo.load(tmp_path / "model", net).predict(x, 10).outputs, outputs)


SHARING = [
    ("input", "unit", (6,)),
    ("input", "layer", ()),
    ("weight", "weight", (2, 6)),
    ("weight", "unit", (6,)),
    ("weight", "layer", ()),
]


@pytest.mark.parametrize(("noise", "per", "shape"), SHARING)
@pytest.mark.parametrize("estimator", ["local", "weights"])
def test_what_has_its_own_alpha(noise, per, shape, estimator):
    net, x = make("dense", p=0.0)
    fitted = fit(net, x, noise=noise, per=per, estimator=estimator)
    family = fitted.posterior.factors[0]
    assert tuple(family.excess("3.weight").shape) == shape and not torch.allclose(
        family.excess("3.weight"), torch.tensor(1 / 9).double()
    )
    factors = 12 if noise == "weight" else 6
    alpha = 1 / 9
    start = fit(net, x, noise=noise, per=per, estimator=estimator, epochs=1, lr=1e-12).history[0][
        "kl"
    ]
    sigmoid = torch.sigmoid(1.87320 + 1.48695 * torch.tensor(alpha).log())
    each = (
        0.63576 - 0.63576 * sigmoid + 0.5 * torch.log1p(torch.tensor(1 / alpha))
    )  # Molchanov et al. 2017, eq. 14, negated
    assert start == pytest.approx(factors * float(each), rel=1e-4), "one KL per factor"


def test_alpha_rises_where_an_input_does_not_matter_and_stays_below_one():
    """y depends on the first of five inputs."""
    x = torch.randn(300, 5, generator=generator("x"), dtype=torch.float64)
    y = 2 * x[:, :1] + 0.1 * torch.randn(300, 1, generator=generator("y"), dtype=torch.float64)
    fitted = fit(
        nn.Linear(5, 1).double(),
        x,
        y,
        layers="all",
        epochs=300,
        lr=0.02,
        batch_size=300,
        rate_lr=10.0,
    )
    alpha = fitted.posterior.factors[0].excess("weight")
    assert float(alpha[0]) < 0.01 and float(alpha[1:].min()) > 0.5 and float(alpha.max()) <= 1.0
    rate = fitted.history[-1]["rate/weight"]
    assert rate == pytest.approx(float((alpha / (1 + alpha)).mean()), rel=1e-3)


def test_the_prior_is_improper_and_log_uniform_whatever_the_model_says():
    net, x = make("dense")
    fitted = fit(net, x)
    assert not fitted.proper and "log_uniform" in repr(
        fitted.model.prior.at(fitted.model.sites["0.weight"])
    )


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"per": "weight"}, "per='weight' needs noise='weight'"),
        ({"length_scale": 1.0}, "length_scale does not apply, its prior is log-uniform"),
        ({"p": 0.5}, "p=0.5 starts alpha = p / .1 - p. at 1 or above; expected p < 0.5"),
        ({"per": "column"}, "per='column'"),
        ({"noise": "output"}, "noise='output'"),
    ],
)
def test_settings_that_do_not_go_together(settings, words):
    with pytest.raises(SettingError, match=f"variational_dropout: {words}"):
        methods["variational_dropout"](**settings)


def test_noise_on_weights_needs_a_network_without_dropout():
    net, x = make("dense")
    with pytest.raises(
        SettingError,
        match="noise='weight' on a network with dropout modules of its own; use noise='input'",
    ):
        fit(net, x, noise="weight")
