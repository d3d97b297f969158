"""Structured Bayesian pruning as a user meets it."""

import pytest
import torch
from torch import nn
from zoo.dropout import NETWORKS, make

import credo
from credo import BNN
from credo.core.errors import SettingError
from credo.core.seeds import generator, isolated
from credo.likelihoods import Gaussian
from credo.methods import methods

Y = torch.tensor([[0.5, -1.0], [1.0, 0.3], [-0.7, 0.1]], dtype=torch.float64)


def fit(net, x, y=Y, std=0.5, **how):
    settings = {"epochs": 3, "lr": 0.01, "progress": False} | how
    return BNN(net, Gaussian(std=std)).fit((x, y), "structured_bp", **settings)


@pytest.mark.parametrize("name", sorted(NETWORKS.keys() - {"functional"}))
def test_every_network_fits_predicts_with_spread_and_saves(name, tmp_path):
    net, x = make(name)
    fitted = fit(net, x)
    outputs = fitted.predict(x, 10).outputs
    assert float(outputs.std(0).min()) > 0 and any(
        key.startswith("units/") for key in fitted.history[-1]
    )
    fitted.save(tmp_path / "model")
    assert torch.equal(credo.load(tmp_path / "model", net).predict(x, 10).outputs, outputs)


def test_inputs_that_do_not_matter_are_pruned_and_those_that_do_stay():
    """y is a sum of the first two of eight inputs and nothing else, so that the best weights of the
    others are zero.
    """
    x = torch.randn(200, 8, generator=generator("x"), dtype=torch.float64)
    y = 2 * x[:, :1] - x[:, 1:2]
    with isolated(0):
        net = nn.Linear(8, 1).double()
    fitted = fit(net, x, y, std=0.1, layers="all", epochs=1500, lr=0.02, batch_size=200)
    (family, *_) = fitted.posterior.factors
    assert family.keep_mask()["weight"].tolist() == [[True] * 2 + [False] * 6]
    assert fitted.history[-1]["units/weight"] == 2.0
    mean = fitted.posterior.mean()["weight"]
    sd = 0.1 / 200**0.5  # of the posterior under a flat prior
    assert (
        float((mean[0, :2] - torch.tensor([2.0, -1.0])).abs().max()) < 5 * sd
        and not mean[0, 2:].any()
    )


def test_an_embedding_and_a_convolution_lose_whole_words_and_channels():
    with isolated(0):
        words = nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(8, 2)).double()
        image = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4, 2)).double()
        cases = (
            (words, torch.randint(0, 7, (3, 2)), "0.weight", 7),
            (image, torch.randn(3, 3, 3, 3).double(), "0.weight", 3),
        )
    for net, x, name, units in cases:
        (family, *_) = fit(net, x, layers="all").posterior.factors
        assert (
            family.snr(name).shape == (units,)
            and family.keep_mask()[name].shape == dict(net.named_parameters())[name].shape
        )


def test_the_fit_starts_at_the_networks_own_function():
    net, x = make("dense", p=0.0)
    fitted = fit(net, x, epochs=1, lr=1e-9)
    torch.testing.assert_close(
        fitted.predict(x, shortcut="mean").outputs[0], net(x).detach(), atol=1e-6, rtol=1e-6
    )


def test_the_prior_is_improper_over_weights():
    net, x = make("dense", p=0.0)
    assert not fit(net, x).proper


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"length_scale": 2.0}, "length_scale=2 does not apply"),
        ({"threshold": 0.0}, "threshold=0"),
        ({"p": 1.0}, "p=1"),
    ],
)
def test_settings_that_do_not_apply(settings, words):
    with pytest.raises(SettingError, match=f"structured_bp.*{words}"):
        methods["structured_bp"](**settings)
