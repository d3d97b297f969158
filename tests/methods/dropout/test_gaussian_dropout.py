"""Gaussian noise on units as a user meets it; z-tests as in ``zoo.stats``."""

import pytest
import torch
from torch import nn
from torch.distributions import Normal
from zoo.dropout import NETWORKS, make
from zoo.stats import has_mean, has_variance

import credo
from credo import BNN
from credo.core.errors import SettingError
from credo.likelihoods import Gaussian

Y = torch.tensor([[0.5, -1.0], [1.0, 0.3], [-0.7, 0.1]], dtype=torch.float64)


def fit(net, x, **how):
    settings = {"epochs": 3, "lr": 0.01, "progress": False} | how
    return BNN(net, Gaussian(std=0.5), prior=Normal(0.0, 1.0)).fit(
        (x, Y), "gaussian_dropout", **settings
    )


@pytest.mark.parametrize("own", [True, False], ids=["module", "units"])
def test_predictions_have_the_moments_of_the_noise(own):
    """Before the last layer alone they are known: mean W h + b, variance alpha W^2 h^2, and the
    noise is Gaussian, unlike dropout's.
    """
    net, x = make("dense", p=0.3 if own else 0.0)
    fitted = fit(net, x, p=0.3)
    w = {n: v.detach() for n, v in fitted.posterior.mean().items()}
    hidden = torch.tanh(x @ w["0.weight"].T + w["0.bias"])
    outputs = fitted.predict(x, 20_000).outputs
    has_mean(outputs, hidden @ w["3.weight"].T + w["3.bias"])
    has_variance(outputs, 0.3 / 0.7 * (hidden**2 @ (w["3.weight"] ** 2).T))
    z = (outputs - outputs.mean(0)) / outputs.std(0)
    has_mean(z**3, 0.0)
    assert float(fitted.predict(x, 200).outputs.flatten(1).unique(dim=0).shape[0]) == 200, (
        "no two draws are alike"
    )


@pytest.mark.parametrize("name", sorted(NETWORKS.keys() - {"functional"}))
def test_every_network_fits_predicts_with_spread_and_saves(name, tmp_path):
    net, x = make(name)
    fitted = fit(net, x)
    outputs = fitted.predict(x, 10).outputs
    assert float(outputs.std(0).min()) > 0
    fitted.save(tmp_path / "model")
    assert torch.equal(credo.load(tmp_path / "model", net).predict(x, 10).outputs, outputs)


@pytest.mark.parametrize("estimator", ["local", "weights", "per_example"])
def test_all_estimators_descend(estimator):
    net, x = make("dense")
    before, after = (
        fit(net, x, epochs=epochs, estimator=estimator, lr=0.02).objective((x, Y), 500)
        for epochs in (1, 100)
    )
    assert after["elbo"] - before["elbo"] > 5 * (after["error"] + before["error"])


def test_its_size_is_chosen_and_does_not_move():
    net, x = make("dense")
    fitted = fit(net, x, epochs=20, p=0.2)
    assert float(fitted.posterior.factors[0].excess("2.mask0")) == pytest.approx(0.25)
    assert not any(key.startswith("rate/") for key in fitted.history[-1])


def test_the_penalty_is_that_of_dropout():
    """The same first two moments: without data noise of the masks' entropies, the KL of both grows
    alike with the weights.
    """
    net, x = make("dense")
    kl = {}
    for scale in (1.0, 2.0):
        scaled = nn.Sequential(*net)
        state = {n: scale * v for n, v in net.state_dict().items()}
        scaled.load_state_dict(state)
        for method in ("gaussian_dropout", "mc_dropout"):
            model = BNN(scaled, Gaussian(std=0.5), prior=Normal(0.0, 1.0))
            kl[method, scale] = model.fit(
                (x, Y), method, epochs=1, lr=1e-12, progress=False
            ).history[-1]["kl"]
        scaled.load_state_dict({n: v / scale for n, v in state.items()})
    grown = [kl[method, 2.0] - kl[method, 1.0] for method in ("gaussian_dropout", "mc_dropout")]
    assert grown[0] == pytest.approx(grown[1], rel=1e-6)


def test_refusals():
    net, x = make("dense")
    with pytest.raises(SettingError, match="gaussian_dropout: p=1"):
        fit(net, x, p=1.0)
    with pytest.raises(
        SettingError,
        match="gaussian_dropout: layers='hidden' on a network that is random by itself",
    ):
        fit(net, x, layers="hidden")
