"""Variance networks as a user meets them: draws know, the mean does not."""

import pytest
import torch
from torch import nn

import credo
from credo import BNN
from credo.core.errors import CredoError, SettingError
from credo.core.seeds import generator, isolated
from credo.posteriors import ZeroMean


@pytest.fixture(scope="module")
def blobs():
    """Three classes told apart by which pair of six inputs is large; signs carry nothing, so
    magnitudes are all there is to know.
    """
    y = torch.arange(300) % 3
    x = 0.3 * torch.randn(300, 6, generator=generator("x"))
    x[torch.arange(300), 2 * y] += 2.0
    x[torch.arange(300), 2 * y + 1] -= 2.0
    return x, y


@pytest.fixture(scope="module")
def fitted(blobs):
    with isolated(0):
        net = credo.nets.mlp(6, (100,), 3)
    return BNN(net, "categorical").fit(blobs, "variance_net", epochs=60, lr=0.03, progress=False)


def accuracy(predictive, y):
    return float((predictive.label == y).double().mean())


def test_many_draws_know_and_a_network_of_the_means_does_not(fitted, blobs):
    x, y = blobs
    many = accuracy(fitted.predict(x, 100), y)
    assert many > 0.9 and many >= accuracy(fitted.predict(x, 1), y)
    net = credo.nets.mlp(6, (100,), 3)
    net.load_state_dict({n: v.clone() for n, v in fitted.posterior.mean().items()})
    outputs = net(x).detach()
    assert not net[0].weight.any() and torch.equal(outputs, outputs[:1].expand_as(outputs)), (
        "the same for every input"
    )
    assert float((outputs.argmax(1) == y).double().mean()) == pytest.approx(1 / 3)


@pytest.mark.parametrize("shortcut", ["mean", "linear", "probit"])
def test_the_mean_is_refused_and_so_is_what_is_linearised_at_it(fitted, blobs, shortcut):
    with pytest.raises(
        CredoError,
        match=r"every weight has mean zero, and a network of zeros computes nothing; predict with "
        r"draws\.",
    ):
        fitted.predict(blobs[0], shortcut=shortcut)


def test_the_objective_is_the_data_term_alone(fitted):
    assert all(row["kl"] == 0.0 and row["elbo"] == -row["nll"] for row in fitted.history)
    assert not fitted.proper


def test_hidden_weights_have_mean_zero_and_the_rest_are_points(fitted):
    (family, points) = fitted.posterior.factors
    assert isinstance(family, ZeroMean) and family.names == ("0.weight",)
    assert set(points.names) == {"0.bias", "2.weight", "2.bias"}


def test_with_a_zero_mean_last_layer_no_deviations_beat_chance(blobs):
    """E[log softmax_y] = -E[logsumexp] <= -log 3, by Jensen's inequality."""
    with isolated(0):
        net = credo.nets.mlp(6, (20,), 3)
    bnn = BNN(net, "categorical").fit(
        blobs, "variance_net", layers="2.weight", epochs=20, lr=0.03, progress=False
    )
    bias = bnn.posterior.mean()["2.bias"]
    with torch.no_grad():
        bias.zero_()
    draws = bnn.predict(blobs[0], 400).outputs
    each = draws.log_softmax(-1).gather(-1, blobs[1].expand(400, -1).unsqueeze(-1)).mean((0, 1, 2))
    error = draws.log_softmax(-1).mean(1).std(0).max() / 20
    assert float(each) < -(torch.tensor(3.0).log() - 5 * error)


def test_a_saved_network_predicts_the_same(fitted, blobs, tmp_path):
    fitted.save(tmp_path / "model")
    with isolated(1):
        net = credo.nets.mlp(6, (100,), 3)
    again = credo.load(tmp_path / "model", net)
    assert torch.equal(again.predict(blobs[0], 7).outputs, fitted.predict(blobs[0], 7).outputs)


def test_layers_by_name_and_a_single_layer():
    x, y = torch.randn(8, 4, generator=generator("x")), torch.arange(8) % 2
    with isolated(0):
        net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 2))
        alone = nn.Linear(4, 2)
    quick = {"epochs": 1, "progress": False}
    assert BNN(net).fit((x, y), "variance_net", layers="2.*", **quick).posterior.factors[
        0
    ].names == ("2.weight",)
    assert BNN(net).fit((x, y), "variance_net", **quick).posterior.factors[0].names == (
        "0.weight",
        "2.weight",
    )
    assert BNN(alone).fit((x, y), "variance_net", **quick).posterior.factors[0].names == ("weight",)
    with pytest.raises(
        SettingError, match=r"layers='0.bias' selects no random parameter with two axes"
    ):
        BNN(net).fit((x, y), "variance_net", layers="0.bias", **quick)
